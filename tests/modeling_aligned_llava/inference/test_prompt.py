"""The special tokens of a rendered prompt: written by the template or added by the tokenizer, never both."""

from datetime import datetime
from types import SimpleNamespace

import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoProcessor, Blip2Processor, BlipImageProcessor

from modeling_aligned_llava.diagnostics.instruments.models import inputs_of
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.inference.prompt import _say_bare, lacks_special_tokens, names_image_token, user_turn
from modeling_aligned_llava.loading.chat_templates import template_of
from tests.benchmark_stand_in import image_of
from tests.conftest import tiny_tokenizer
from tests.modeling_aligned_llava.tiny_families import random_pair, write_checkpoint
from tests.modeling_aligned_llava.tiny_parts import clip_llava
from tests.one_line import one_line


@pytest.mark.parametrize("name", ["gemma3", "pixtral"])  # the template writes the beginning; the tokenizer adds it
def test_evaluation_and_diagnostics_ask_with_the_same_tokens(tmp_path, name):
    folder = str(write_checkpoint(name, tmp_path / "tiny"))
    generator = load_generator(folder)
    asked = SimpleNamespace(question="What is it?", open=lambda: image_of(1))
    prompt = generator.render(asked.question, images=1)
    evaluated = generator.inputs([prompt], [[asked.open()]])["input_ids"][0].tolist()
    assert evaluated == generator.tokenize([prompt], [[image_of(1).size]])[0]
    assert evaluated == inputs_of(generator.processor, asked, "cpu")["input_ids"][0].tolist()
    assert evaluated.count(generator.processor.tokenizer.bos_token_id) == 1


def test_the_image_token_of_blip_2_is_no_text_to_find_in_a_prompt():
    assert not names_image_token(Blip2Processor(BlipImageProcessor(), tiny_tokenizer(), num_query_tokens=4))


@pytest.mark.parametrize("place", ["tokenizer", "several", "processor"])
def test_the_template_is_the_tokenizers_where_the_processor_has_none(place):
    processor = clip_llava()
    template, asked = processor.chat_template, user_turn(processor, "What?", 1, "Be brief.")
    assert "<|im_start|>user\n<image>\nWhat?<|im_end|>" in asked and "Be brief." in asked
    if place != "processor":
        processor.chat_template = None
        processor.tokenizer.chat_template = {"default": template, "rag": "x"} if place == "several" else template
    assert template_of(processor) == template and user_turn(processor, "What?", 1, "Be brief.") == asked


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ({"rag": "x"}, r"several chat templates \(rag\), and none is called default"),
        ("{{ raise_exception('no system') }}", "the chat template refuses it: no system"),
        ("{% for m in messages %}{{ 'x' + m.content }}{% endfor %}", "refuses it: can only concatenate str"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "it takes text only"),
        ("{{ messages[1].content[1].text }}", "refuses it: it drops text of the system turn"),
        ("{{ messages[0].content[0].text }}", "refuses it: it drops text of the user turn"),
        (None, "no chat template that could write the system prompt"),
    ],
)
def test_a_template_that_cannot_ask_is_one_line(template, message):
    processor = clip_llava()
    processor.chat_template = template
    with one_line(message):
        user_turn(processor, "What?", 1, "Be brief.")


def test_a_missing_template_is_said_once_unless_the_family_has_none(caplog):
    _say_bare.cache_clear()
    processor = clip_llava()
    processor.chat_template = None
    assert [user_turn(processor, "What?", 1) for _ in range(2)] == ["<image>What?"] * 2
    user_turn(random_pair("paligemma")[1], "What?", 1)
    assert [record.getMessage() for record in caplog.records] == [
        "LlavaProcessor has no chat template: questions are asked without one"
    ]


def test_a_prompt_is_the_same_on_every_day(tiny_llava, monkeypatch):
    """Templates of Mistral Small 3 and Llama 3.2 write today's date."""

    class Tomorrow(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(2031, 5, 1)

    processor = AutoProcessor.from_pretrained(tiny_llava)
    today = '{%- if strftime_now is defined %}{%- set today = strftime_now( "%d %B %Y" ) %}{%- endif %}{{ today }}'
    processor.chat_template = today + processor.chat_template
    today = user_turn(processor, "What?", images=1)
    monkeypatch.setattr("transformers.utils.chat_template_utils.datetime", Tomorrow)
    assert user_turn(processor, "What?", images=1) == today and today.startswith("26 July 2024")


@pytest.mark.parametrize(
    ("added", "prompt", "lacks"),
    [
        ("$A", "a cat", False),
        ("<image> $A", "a cat", True),
        ("<image> $A", "<image>a cat", False),
        ("<image> $A <|im_end|>", "<image>a cat", False),  # Cohere's, whose template writes the first one
        ("$A <|im_end|>", "a cat", False),  # `add_eos_token`, as some fine-tuning scripts leave it
        ("<image> $A <|im_end|>", "a cat", None),
    ],
)
def test_special_tokens_are_added_where_the_prompt_lacks_the_first_and_never_after_it(added, prompt, lacks):
    tokenizer = random_pair("llava")[1].tokenizer
    ids = [(token, tokenizer.convert_tokens_to_ids(token)) for token in ("<image>", "<|im_end|>")]
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=added, special_tokens=ids)
    if lacks is None:
        with one_line(r"the tokenizer ends every text with <\|im_end\|>"):
            lacks_special_tokens(tokenizer, prompt)
    else:
        assert lacks_special_tokens(tokenizer, prompt) == lacks


def test_text_benchmarks_refuse_a_tokenizer_that_ends_every_text(tmp_path):
    model, processor = random_pair("llava")
    ends = TemplateProcessing(single="$A <|im_end|>", special_tokens=[("<|im_end|>", 2)])
    processor.tokenizer.backend_tokenizer.post_processor = ends
    model.save_pretrained(tmp_path), processor.save_pretrained(tmp_path)
    with one_line(r"the tokenizer ends every text with <\|im_end\|>"):
        AlignedLlavaLM(str(tmp_path))
