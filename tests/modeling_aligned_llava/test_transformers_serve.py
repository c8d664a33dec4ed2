"""`transformers serve` answers about an image from a saved folder, with the folder's own code."""

import sys

import pytest
import torch
from transformers import AutoProcessor

from modeling_aligned_llava import align, load_aligned
from tests.chat_server import ask, serving
from tests.modeling_aligned_llava.loaded import load
from tests.modeling_aligned_llava.tiny_families import random_pair


pytestmark = pytest.mark.slow

TOKENS = 12


def norm_of(model):
    """The parameters of the norm."""
    return [
        value for name, value in model.named_parameters() if "projector.norm." in name or "alignment_norm." in name
    ]


@pytest.fixture(scope="module")
def folders(tiny_checkpoint, tmp_path_factory):
    """An aligned LLaVA, and an aligned model of another family, in which the norm decides what is said."""
    family, processor = random_pair("idefics3")
    pairs = {"llava": (load(folder := tiny_checkpoint("norm-gwc")), AutoProcessor.from_pretrained(folder))}
    pairs["idefics3"] = align(family), processor
    root = tmp_path_factory.mktemp("served")
    for name, (model, processor) in pairs.items():
        for parameter in norm_of(model):
            parameter.data += 3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
        model.save_pretrained(root / name)
        processor.save_pretrained(root / name)
    return [root / name for name in pairs]


def test_its_answer_is_that_of_transformers(folders, tiny_images, tmp_path):
    command = [sys.executable, "-m", "transformers.cli.transformers", "serve", "--device", "cpu"]
    with serving([*command, "--trust-remote-code"], tmp_path / "log") as address:
        choices = [ask(address, folder, tiny_images[:1], "What is this?", max_tokens=TOKENS) for folder in folders]
    for folder, choice in zip(folders, choices, strict=True):
        served, words = choice["message"]["content"], {"type": "text", "text": "What is this?"}
        processor, model = AutoProcessor.from_pretrained(folder), load_aligned(folder).eval()
        question = [{"role": "user", "content": [{"type": "image", "path": str(tiny_images[0])}, words]}]
        inputs = processor.apply_chat_template(
            question, add_generation_prompt=True, tokenize=True, return_dict=True, return_tensors="pt"
        )
        prompt = inputs["input_ids"].shape[1]

        def answer_of_model(model=model, processor=processor, inputs=inputs, prompt=prompt):
            tokens = model.generate(**inputs, max_new_tokens=TOKENS, do_sample=False)
            return processor.decode(tokens[0, prompt:], skip_special_tokens=True)

        assert served == answer_of_model(), folder
        for parameter in norm_of(model):
            torch.nn.init.zeros_(parameter)
        assert served != answer_of_model()  # the norm matters
