"""The settings of lmms-eval's own models are read from its code, so that a new version shows where ours are old."""

import importlib
import inspect
import re

import pytest

from modeling_aligned_llava.harness.deviations import ASSISTANT, OTHER, STOCK, deviations, stock


CLASSES = {each.model: each for each in (*STOCK.values(), OTHER)}
each_class = pytest.mark.parametrize("own", CLASSES.values(), ids=CLASSES)


def stock_class(name):
    """The class that lmms-eval uses for a model's name: the chat class if there is one."""
    for kind in ("chat", "simple"):
        try:
            module = importlib.import_module(f"lmms_eval.models.{kind}.{name}")
        except ImportError:
            continue
        (found,) = (each for each in vars(module).values() if getattr(each, "__module__", "") == module.__name__)
        return found
    raise AssertionError(name)


def source(name):
    """The code of that class, with what `qwen3_vl` has in the simple one that it is derived from."""
    module = importlib.import_module(stock_class(name).__module__)
    return inspect.getsource(module) + (inspect.getsource(_simple(name)) if name == "qwen3_vl" else "")


def answering(name):
    return inspect.getsource(stock_class(name).generate_until)


@each_class
def test_the_length_of_answers_is_that_of_lmms_eval(own):
    found = re.findall(r'max_new_tokens(?:"\] =|":|", | =|: int =) ?(\d+)', source(own.model))
    assert str(own.max_new_tokens) in found


@each_class
def test_the_system_prompt_is_that_of_lmms_eval(own):
    prompt = inspect.signature(stock_class(own.model).__init__).parameters.get("system_prompt")
    used = prompt is not None and "self.system_prompt" in answering(own.model)
    assert own.system_prompt == (prompt.default if used else None)


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
