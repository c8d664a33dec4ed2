"""The special tokens of a rendered prompt: written by the template or added by the tokenizer, never both."""

from types import SimpleNamespace

import pytest
from tokenizers import processors
from transformers import Blip2Processor, BlipImageProcessor

from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.inference.prompt import lacks_special_tokens, names_image_token, user_turn
from modeling_aligned_llava.loading.chat_templates import chat_template
from tests.benchmark_stand_in import image_of
from tests.conftest import tiny_tokenizer
from tests.modeling_aligned_llava.tiny_families import write_checkpoint


VICUNA = "{% for message in messages %}USER: {{ message['content'] }} ASSISTANT:{% endfor %}"


def begins(tokenizer):
    """The tokenizer with a beginning-of-sequence token that it adds to every text."""
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.bos_token_id)]
    )
    return tokenizer


@pytest.mark.parametrize(
    ("tokenizer", "template", "lacks"),
    [
        (begins(tiny_tokenizer()), chat_template("llama3"), False),
        (begins(tiny_tokenizer()), VICUNA, True),
        (tiny_tokenizer(), chat_template("qwen2_5"), False),
    ],
    ids=["llama3", "vicuna", "qwen2_5"],
)
def test_a_prompt_has_one_beginning_where_the_model_has_one(tokenizer, template, lacks):
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], chat_template=template, tokenize=False)
    assert lacks_special_tokens(tokenizer, prompt) == lacks
    ids = tokenizer(prompt, add_special_tokens=lacks)["input_ids"]
    assert ids.count(tokenizer.bos_token_id) == (tokenizer.bos_token is not None)


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


def test_blip_2_writes_its_visual_tokens_itself():
    processor = Blip2Processor(BlipImageProcessor(), tiny_tokenizer(), num_query_tokens=4)
    assert user_turn(processor, "What is it?", images=1) == "What is it?"
    inputs = processor(text=["What is it?"], images=[image_of(0)], return_tensors="pt")
    image_token = processor.tokenizer.convert_tokens_to_ids("<image>")
    assert int((inputs["input_ids"] == image_token).sum()) == 4
    assert not names_image_token(processor)  # an AddedToken is no text for the evaluation to find in a prompt
