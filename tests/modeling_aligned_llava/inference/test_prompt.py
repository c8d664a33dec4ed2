"""The special tokens of a rendered prompt: written by the template or added by the tokenizer, never both."""

from types import SimpleNamespace

import pytest
from transformers import Blip2Processor, BlipImageProcessor

from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.inference.prompt import names_image_token
from tests.benchmark_stand_in import image_of
from tests.conftest import tiny_tokenizer
from tests.modeling_aligned_llava.tiny_families import write_checkpoint


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
