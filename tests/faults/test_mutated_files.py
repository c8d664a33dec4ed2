"""Mutated files of a checkpoint, loaded as users and evaluation do, and mutated recipes.

Each checkpoint ends in an error that says something, in the same results, or in a model that is what its files say
(another epsilon, another template): all its weights are those of the file, none depends on chance.
"""

import hashlib
import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoProcessor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import load_generator
from tests import REPOSITORY
from tests.faults.harness import bounded_memory, in_campaign
from tests.faults.mutations import mutated_text, mutated_values
from train.optimization.parameter_groups import group_parameters
from train.parse import parse_settings
from train.settings import read_settings


PEAK_MIB = 4000
SETTINGS = settings(database=None, deadline=None, phases=[Phase.generate], suppress_health_check=[*HealthCheck])
PICTURE = Image.linear_gradient("L").convert("RGB")
TEMPLATE = "chat_template.jinja"  # a text with few ways to be wrong
FILES = (
    *("config.json", "generation_config.json", "model.safetensors", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json"),
)
CASES = [(name, 0, 4) for name in (*FILES, TEMPLATE)]
CAMPAIGN = [(name, number, 25) for name in FILES for number in range(1, 7)]


class WrongWeights(BaseException):
    """A weight is not what the file holds. Nobody may take it for a refusal."""


class FailedAnswer(Exception):
    """The checkpoint was loaded, and could not answer."""


@pytest.fixture(scope="module")
def unchanged(checkpoint) -> tuple[str, str]:
    return own_class(checkpoint), served(checkpoint)


@pytest.mark.parametrize(("name", "number", "count"), [*CASES, *in_campaign(CAMPAIGN)])
def test_a_mutated_file_is_refused_or_means_what_it_says(name, number, count, checkpoint, unchanged, tmp_path):
    @seed(f"{name} {number}")
    @settings(SETTINGS, max_examples=count)
    @given(mutations(name, (checkpoint / name).read_bytes()))
    def check(mutated: bytes) -> None:
        folder = tmp_path / "mutated"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(checkpoint, folder)
        (folder / name).write_bytes(mutated)
        assert_refused_or_consistent(folder, unchanged)

    with bounded_memory(PEAK_MIB):
        check()


def mutations(name: str, content: bytes) -> SearchStrategy[bytes]:
    """Mutated values of JSON, or of the header of safetensors, and twice less often a mutated text."""
    start, end = 0, len(content)
    if name.endswith(".safetensors"):
        start, end = 8, 8 + struct.unpack("<Q", content[:8])[0]

    def written(values: Any) -> bytes:
        header = json.dumps(values).encode()
        return (struct.pack("<Q", len(header)) if start else b"") + header + content[end:]

    if name == TEMPLATE:
        return mutated_text(content)
    values = mutated_values(content[start:end], json.loads).map(written)
    return values | values | mutated_text(content)


def assert_refused_or_consistent(folder: Path, unchanged: tuple[str, str]) -> None:
    loaded, answered = outcome(own_class, folder), outcome(served, folder)
    if isinstance(answered, Exception) and not isinstance(answered, FailedAnswer):
        assert isinstance(answered, UserError), repr(answered)
        assert "\n" not in str(answered) and str(folder) in str(answered), answered
    if isinstance(loaded, Exception) or isinstance(answered, Exception):
        return
    if (loaded, answered) != unchanged:
        torch.manual_seed(1)
        assert (outcome(own_class, folder), outcome(served, folder)) == (loaded, answered), "depends on chance"


def outcome(load: Callable[[Path], str], folder: Path) -> str | Exception:
    """A digest of the results, or the error."""
    try:
        return load(folder)
    except Exception as error:
        assert str(error).strip() or isinstance(error, AssertionError), f"{type(error).__name__} says nothing"
        return error


def own_class(folder: Path) -> str:
    """As the README loads a checkpoint; all weights are those of its file."""
    model = AlignedLlavaForConditionalGeneration.from_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name, parameter in model.state_dict().items():
        if name not in stored or not equal(parameter, stored[name]):
            raise WrongWeights(name)
    processor = AutoProcessor.from_pretrained(folder)
    return digest(model, processor(text=["<image>\nwhat?"], images=[PICTURE], return_tensors="pt"))


def equal(loaded: torch.Tensor, stored: torch.Tensor) -> bool:
    stored = stored.to(loaded.dtype)
    return torch.equal(torch.nan_to_num(loaded.float()), torch.nan_to_num(stored.float()))


def served(folder: Path) -> str:
    """As evaluation loads a checkpoint, and answers."""
    generator = load_generator(str(folder))
    try:
        prompt = generator.render("what?", 1)
        answer = generator.answer([prompt], [[PICTURE]], 3)
        return f"{answer} {digest(generator.model, generator.inputs([prompt], [[PICTURE]]))}"
    except Exception as error:
        raise FailedAnswer(repr(error)) from error


@torch.inference_mode()
def digest(model, inputs) -> str:
    return hashlib.sha256(model(**inputs).logits.float().numpy().tobytes()).hexdigest()


RECIPE = (REPOSITORY / "configuration" / "train" / "tinyworld" / "stage2.yaml").read_bytes()


@pytest.mark.parametrize(("number", "count"), [(0, 4), *in_campaign([(1, 150)])])
def test_a_mutated_recipe_is_read_or_refused_in_one_line(number, count, checkpoint, tmp_path):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(checkpoint)
    recipe = tmp_path / "recipe.yaml"
    values = mutated_values(RECIPE, yaml.safe_load).map(lambda values: yaml.safe_dump(values).encode())

    @seed(number)
    @settings(SETTINGS, max_examples=count)
    @given(values | values | mutated_text(RECIPE))
    def check(mutated: bytes) -> None:
        recipe.write_bytes(mutated)
        try:
            command = ["--config", str(recipe), "--method", "norm", "--output_dir", str(tmp_path)]
            optimization = parse_settings(read_settings(command)).optimization
            group_parameters(model, optimization.rates, optimization.frozen)
        except UserError as error:
            assert re.fullmatch(r".+", str(error)), error

    with bounded_memory(PEAK_MIB):
        check()
