"""Tiny random backbones and checkpoints for the tests: hidden 32, 2 layers, 28-pixel images, byte-level tokens."""

import os
import sys


# One thread, here and in what the tests start: they run side by side, and the order of a sum, so its last bit, depends
# on the number of threads.
os.environ.update(
    HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false", OMP_NUM_THREADS="1"
)

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.loading.chat_templates import chat_template
from modeling_aligned_llava.methods import method_fields
from tests import benchmark_stand_in
from tests.one_line import one_line


TEXTS = ["a red ball lies left of a green box", "what is it?", "two cats"]  # for methods that are measured on text


@dataclass(frozen=True)
class TinyBackbones:
    """Folders of a SigLIP tower, an untied Qwen2 decoder and a tied Llama decoder, all random."""

    vision: Path
    qwen2: Path
    llama: Path


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """256 bytes and three special tokens, and no `<image>`."""
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    backend = benchmark_stand_in.byte_level(special)
    backend.add_special_tokens(special)
    names = {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names, chat_template=chat_template("tinyworld"))


def write_backbones(root: Path) -> TinyBackbones:
    folders = TinyBackbones(root / "vision", root / "qwen2", root / "llama")
    torch.manual_seed(0)
    vision = SiglipVisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2, image_size=28, patch_size=14
    )
    SiglipVisionModel(vision).save_pretrained(folders.vision)
    SiglipImageProcessor(size={"height": 28, "width": 28}).save_pretrained(folders.vision)
    tokenizer = tiny_tokenizer()
    shape = {**benchmark_stand_in.text_shape(tokenizer), "max_position_embeddings": 512}
    for folder, model in (
        (folders.qwen2, Qwen2ForCausalLM(Qwen2Config(**shape, tie_word_embeddings=False))),
        (folders.llama, LlamaForCausalLM(LlamaConfig(**shape, tie_word_embeddings=True))),
    ):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return folders


@pytest.fixture(scope="session")
def tiny_backbones(tmp_path_factory) -> TinyBackbones:
    return write_backbones(tmp_path_factory.mktemp("backbones"))


@pytest.fixture(scope="session")
def tiny_images(tmp_path_factory) -> list[Path]:
    """Three image files of noise."""
    folder = tmp_path_factory.mktemp("images")
    noise = torch.randint(0, 256, (3, 28, 28, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for i, pixels in enumerate(noise.numpy()):
        Image.fromarray(pixels).save(folder / f"{i}.png")
    return sorted(folder.iterdir())


@pytest.fixture(scope="session")
def tiny_checkpoint(tiny_backbones, tmp_path_factory) -> Callable[..., Path]:
    """`tiny_checkpoint(method, decoder="qwen2")` -> an assembled folder, made once; treat it as read-only."""
    made: dict[tuple[str, str], Path] = {}

    def make(method: str, decoder: str = "qwen2") -> Path:
        if (method, decoder) not in made:
            made[method, decoder] = assemble(
                tiny_backbones.vision,
                getattr(tiny_backbones, decoder),
                tmp_path_factory.mktemp("checkpoints") / f"{method}-{decoder}",
                fields=method_fields(method),
                texts=TEXTS,
            )
        return made[method, decoder]

    return make


@pytest.fixture
def call(monkeypatch) -> Callable[..., None]:
    """`call(main, *words)` runs the `main` of a program with these words as its command line."""

    def call(main, *words) -> None:
        monkeypatch.setattr(sys, "argv", ["program", *map(str, words)])
        main()

    return call


@pytest.fixture
def refusal(call) -> Callable[..., str]:
    """`refusal(main, *words)` -> the one line with which a program refuses these words."""

    def refusal(main, *words) -> str:
        with one_line(".") as error:
            call(main, *words)
        return str(error.value)

    return refusal


@pytest.fixture(scope="session")
def tiny_llava(tmp_path_factory):
    return benchmark_stand_in.write_llava(tmp_path_factory.mktemp("llava") / "tiny")


@pytest.fixture(scope="session")
def tiny_language_model(tiny_backbones):
    return tiny_backbones.qwen2


@pytest.fixture(scope="session")
def mirror_root(tmp_path_factory):
    return benchmark_stand_in.write_mirror(tmp_path_factory.mktemp("mirror"))
