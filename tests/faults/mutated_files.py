"""Mutated files of a checkpoint and mutated recipes, through every way in which a user loads them.

hypothesis draws the mutations. Each ends in an error that names it, in the same results, or in a model that is what
its files say (another epsilon, another template): all its weights are those of the file, none depends on chance.
"""

import contextlib
import functools
import hashlib
import json
import os
import re
import shutil
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import torch
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from PIL import Image
from safetensors.torch import load_file
from transformers import AutoProcessor
from transformers.utils import logging

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import load_generator
from tests import REPOSITORY
from tests.faults.campaign import Campaign, Case
from tests.faults.child import in_child
from tests.faults.tiny import tiny
from train.arguments.parse import parse_arguments
from train.optimization.parameter_groups import group_parameters


CHUNK = 25
SECONDS = 60  # of computing, for one mutation
PEAK_MIB = 4000
FILES = (
    *("config.json", "generation_config.json", "model.safetensors", "processor_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"),
)
RECIPE = "recipe"


def cases(number: int) -> Iterator[Case]:
    """1,050 mutations: 150 of each file but the template, whose text has few ways to be wrong, and 150 recipes."""
    for name in (*FILES[:-1], RECIPE):
        for chunk in range(6):
            yield Case(f"{name} {chunk}", functools.partial(mutations_case, f"{number} {chunk}", name, CHUNK))


@dataclass(frozen=True)
class Mutation:
    """How the content of a file is changed.

    Args:
        place: 0 to 1, where in the file, or which of the values in it.
        what: "delete", "value" (replaced) or, for the file as bytes, "cut", "remove", "insert".
        value: the new value; for "insert", the bytes.
    """

    place: float
    what: str
    value: Any = None

    def of_text(self, content: bytes) -> bytes:
        at = round(self.place * len(content))
        if self.what == "cut":
            return content[:at]
        if self.what == "remove":
            return content[:at] + content[at + 1 + len(content) // 50 :]
        return content[:at] + self.value + content[at:]

    def of_values(self, content: Any) -> Any:
        places = [*_places(content)]
        if not places:
            return self.value
        holder, key = places[min(int(self.place * len(places)), len(places) - 1)]
        if self.what == "delete":
            del holder[key]
        else:
            holder[key] = self.value
        return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each (container, key) in nested lists and dictionaries; of a long list, the first hundred."""
    items = (
        content.items() if isinstance(content, dict) else enumerate(content[:100]) if isinstance(content, list) else ()
    )
    for key, value in list(items):
        yield content, key
        yield from _places(value)


NUMBERS = st.integers() | st.integers(0, 64) | st.integers(0, 50).map(lambda power: 2**power) | st.floats()
WORDS = st.sampled_from(
    ["none", "rmsnorm", "relative", "qwen2", "llava", "gelu", "<image>", "../x", "F64", "I8", "nan"]
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
PLACES = st.integers(0, 999_999).map(lambda place: place / 1_000_000)
IN_VALUES = st.builds(Mutation, PLACES, st.just("value"), VALUES) | st.builds(Mutation, PLACES, st.just("delete"))
IN_TEXT = st.builds(Mutation, PLACES, st.sampled_from(["cut", "remove"])) | st.builds(
    Mutation, PLACES, st.just("insert"), st.binary(min_size=1, max_size=8)
)


def mutate(content: bytes, name: str, mutation: Mutation) -> bytes:
    if mutation.what not in ("value", "delete"):
        return mutation.of_text(content)
    if name.endswith(".json"):
        return json.dumps(mutation.of_values(json.loads(content))).encode()
    if name == RECIPE:
        return yaml.safe_dump(mutation.of_values(yaml.safe_load(content))).encode()
    if name.endswith(".safetensors"):
        (length,) = struct.unpack("<Q", content[:8])
        header = json.dumps(mutation.of_values(json.loads(content[8 : 8 + length]))).encode()
        return struct.pack("<Q", len(header)) + header + content[8 + length :]
    return content


def mutations_case(key: str, name: str, count: int, folder: Path) -> dict[str, Any]:
    """`count` mutations of one file, in a child.

    Raises:
        AssertionError: with the mutation.
    """
    tiny()  # before the fork
    measured = in_child(functools.partial(_mutations, key, name, count, folder), SECONDS)
    assert measured["peak_mib"] < PEAK_MIB, f"{name}: {measured['peak_mib']} MiB"
    return measured


def _mutations(key: str, name: str, count: int, folder: Path, current: Synchronized) -> dict[str, Any]:
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    counts: Counter[str] = Counter()
    check = _check_recipe if name == RECIPE else _check_checkpoint

    @seed(int.from_bytes(hashlib.sha256(f"{key} {name}".encode()).digest()[:8], "big"))
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(IN_TEXT if name.endswith(".jinja") else IN_VALUES | IN_VALUES | IN_TEXT)
    def run(mutation: Mutation) -> None:
        current.value += 1
        before = dict(os.environ)  # TRL takes variables from a recipe
        try:
            counts[check(name, mutation, folder)] += 1
        finally:
            os.environ.clear()
            os.environ.update(before)
        counts["mutations"] += 1

    run()
    return dict(counts)


def _check_checkpoint(name: str, mutation: Mutation, folder: Path) -> str:
    """Load a checkpoint with one mutated file, as users and the evaluation do; return how that ended."""
    target = folder / "mutated"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(tiny().checkpoint, target)
    (target / name).write_bytes(mutate((target / name).read_bytes(), name, mutation))
    what = f"{name}: {mutation}"
    own = _outcome(functools.partial(_own_class, target), what)
    served = _outcome(functools.partial(_served, target), what)
    if isinstance(served, Exception) and not getattr(served, "while_answering", False):
        assert isinstance(served, UserError), f"{what}: {type(served).__name__}: {served}"
        assert "\n" not in str(served) and str(target) in str(served), f"{what}: {served}"
    if isinstance(own, Exception) or isinstance(served, Exception):
        return "refused"
    if (own, served) == _reference():
        return "same results"
    torch.manual_seed(1)
    again = _outcome(functools.partial(_own_class, target), what), _outcome(functools.partial(_served, target), what)
    assert again == (own, served), f"{what}: the results depend on chance"
    return "other settings"


def _outcome(load: Callable[[], str], what: str) -> str | Exception:
    """A digest of the results, or the error."""
    try:
        return load()
    except Exception as error:
        assert str(error).strip() or isinstance(error, AssertionError), f"{what}: {type(error).__name__} says nothing"
        return error
    except BaseException as error:
        raise AssertionError(f"{what}: {type(error).__name__} ends the program: {error}") from error


@functools.cache
def _reference() -> tuple[str, str]:
    return _own_class(tiny().checkpoint), _served(tiny().checkpoint)


def _own_class(folder: Path) -> str:
    """As the README loads a checkpoint; all weights are those of its file."""
    model = AlignedLlavaForConditionalGeneration.from_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    for name, parameter in model.state_dict().items():
        loaded = name in stored and parameter.shape == stored[name].shape
        if not loaded or not _equal(parameter, stored[name].to(parameter.dtype)):
            raise SystemExit(f"{name} is not what the file holds")  # nobody may take it for a refusal
    processor = AutoProcessor.from_pretrained(folder)
    return _results(model, processor(text=["<image>\nwhat?"], images=[_picture()], return_tensors="pt"))


def _served(folder: Path) -> str:
    """As evaluation and demo load a checkpoint, and answer."""
    generator = load_generator(str(folder))
    try:
        prompt = generator.render("what?", 1)
        inputs = generator.inputs([prompt], [[_picture()]])
        answer = generator.answer([prompt], [[_picture()]], 3)
        return f"{answer} {_results(generator.model, inputs)}"
    except Exception as error:
        error.while_answering = True  # type: ignore[attr-defined]
        raise


@torch.inference_mode()
def _results(model: Any, inputs: Any) -> str:
    return hashlib.sha256(model(**inputs).logits.float().numpy().tobytes()).hexdigest()


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(torch.nan_to_num(one.float()), torch.nan_to_num(other.float()))


@functools.cache
def _picture() -> Image.Image:
    return Image.linear_gradient("L").convert("RGB")


def _check_recipe(name: str, mutation: Mutation, folder: Path) -> str:
    """Read a mutated recipe and group the parameters by it."""
    content = (REPOSITORY / "configuration" / "train" / "tinyworld" / "stage2.yaml").read_bytes()
    recipe = folder / "recipe.yaml"
    recipe.write_bytes(mutate(content, RECIPE, mutation))
    try:
        with contextlib.redirect_stderr(open(os.devnull, "w")):
            run, training = parse_arguments(["--config", str(recipe), "--method", "norm", "--output_dir", str(folder)])
            group_parameters(_model(), run.optimization.rates, run.optimization.frozen)
    except UserError as error:
        assert re.fullmatch(r".+", str(error)), f"{mutation}: {error}"
        return "refused"
    except SystemExit as error:
        assert error.code == 2, f"{mutation}: {error}"  # argparse, which names the option
        return "refused"
    except BaseException as error:
        raise AssertionError(f"{mutation}: {type(error).__name__}: {error}") from error
    return "same results" if (run, training.to_dict()) == _recipe_reference(folder) else "other settings"


def _recipe_reference(folder: Path) -> Any:
    recipe = str(REPOSITORY / "configuration" / "train" / "tinyworld" / "stage2.yaml")
    run, training = parse_arguments(["--config", recipe, "--method", "norm", "--output_dir", str(folder)])
    return run, training.to_dict()


@functools.cache
def _model() -> AlignedLlavaForConditionalGeneration:
    return AlignedLlavaForConditionalGeneration.from_pretrained(tiny().checkpoint)


CAMPAIGN = Campaign("mutated_files", cases)
