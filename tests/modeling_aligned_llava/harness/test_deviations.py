"""The settings of lmms-eval's own models are read from its code, so that a new version shows where ours are old."""

import importlib
import inspect
import re

import pytest

from modeling_aligned_llava.harness.deviations import ASSISTANT, OTHER, STOCK, deviations, stock


CLASSES = {each.model: each for each in (*STOCK.values(), OTHER)}


def source(name):
    """The code of the class that lmms-eval uses for a model's name: the chat class if there is one."""
    for kind in ("chat", "simple"):
        try:
            return inspect.getsource(importlib.import_module(f"lmms_eval.models.{kind}.{name}"))
        except ImportError:
            continue
    raise AssertionError(name)


@pytest.mark.parametrize("own", CLASSES.values(), ids=CLASSES)
def test_the_length_of_answers_is_that_of_lmms_eval(own):
    code = source(own.model) + (inspect.getsource(_simple(own.model)) if own.model == "qwen3_vl" else "")
    found = re.findall(r'max_new_tokens(?:"\] =|":|", | =|: int =) ?(\d+)', code)
    assert str(own.max_new_tokens) in found


def _simple(name):
    return importlib.import_module(f"lmms_eval.models.simple.{name}")


@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_the_size_of_images_is_that_of_lmms_eval(name):
    (kind,) = (value for key, value in vars(_simple(name)).items() if key.lower() == name and inspect.isclass(value))
    defaults = {key: value.default for key, value in inspect.signature(kind.__init__).parameters.items()}
    assert stock(name).processor["size"] == {
        "shortest_edge": defaults["min_pixels"],
        "longest_edge": defaults["max_pixels"],
    }
    assert defaults["system_prompt"] == ASSISTANT


def test_every_deviation_is_told_where_it_matters():
    llava, qwen = deviations("aligned_llava", ["scienceqa", "mmstar"]), deviations("qwen3_vl", ["mmstar"])
    assert any("scienceqa" in each for each in llava) and not any("scienceqa" in each for each in qwen)
    assert not any("scienceqa" in each for each in deviations("llava", ["pope"]))
    assert any("Question: " in each for each in qwen)
    assert any("ovis2" in each for each in deviations("ovis2", []))
    assert any("samples" in each for each in deviations("mistral3", []))
