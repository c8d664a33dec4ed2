"""The settings of lmms-eval's own models are read from its code, so that a new version shows where ours are old."""

import copy
import importlib
import inspect
import json
import re

import pytest
from transformers import AutoProcessor

from modeling_aligned_llava.harness.deviations import ASSISTANT, OTHER, STOCK, deviations, stock
from modeling_aligned_llava.inference.generator import load_processor
from modeling_aligned_llava.inference.image_slots import ImageSlots
from tests.modeling_aligned_llava.tiny_families import write_checkpoint
from tests.one_line import one_line


CLASSES = {settings.model: settings for settings in (*STOCK.values(), OTHER)}
every_class = pytest.mark.parametrize("settings", CLASSES.values(), ids=CLASSES)


def stock_class(name):
    """The class that lmms-eval uses for a model's name: the chat class if there is one."""
    for kind in ("chat", "simple"):
        try:
            module = importlib.import_module(f"lmms_eval.models.{kind}.{name}")
        except ImportError:
            continue
        (model_class,) = (
            member for member in vars(module).values() if getattr(member, "__module__", "") == module.__name__
        )
        return model_class
    raise AssertionError(name)


def source(name):
    """The code of that class, with what `qwen3_vl` has in the simple one that it is derived from."""
    module = importlib.import_module(stock_class(name).__module__)
    return inspect.getsource(module) + (inspect.getsource(_simple(name)) if name == "qwen3_vl" else "")


def answering(name):
    return inspect.getsource(stock_class(name).generate_until)


@every_class
def test_the_length_of_answers_is_that_of_lmms_eval(settings):
    limits = re.findall(r'max_new_tokens(?:"\] =|":|", | =|: int =) ?(\d+)', source(settings.model))
    assert str(settings.max_new_tokens) in limits


@every_class
def test_the_system_prompt_is_that_of_lmms_eval(settings):
    prompt = inspect.signature(stock_class(settings.model).__init__).parameters.get("system_prompt")
    used = prompt is not None and "self.system_prompt" in answering(settings.model)
    assert settings.system_prompt == (prompt.default if used else None)


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


# As Qwen published it; the processors of transformers 5 take these over `size`.
QWEN = {"min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2}
QWEN |= {"image_processor_type": "Qwen2VLImageProcessor"}
INTERN = {"image_processor_type": "GotOcr2ImageProcessorFast", "crop_to_patches": True, "max_patches": 3}
INTERN |= {"size": {"height": 28, "width": 28}}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("name", "published"), [("qwen2_vl", QWEN), ("qwen2_5_vl", QWEN), ("internvl", INTERN)])
def test_the_settings_act_on_processors_as_published(name, published, nested, tmp_path):
    folder, before = write_checkpoint(name, tmp_path), copy.deepcopy(STOCK)
    whole = json.loads((folder / "processor_config.json").read_text(encoding="utf-8"))
    (folder / "processor_config.json").unlink()
    if nested:  # as transformers 5 writes it
        content = json.dumps({**whole, "image_processor": published})
        (folder / "processor_config.json").write_text(content, encoding="utf-8")
    else:
        kind = json.dumps({**published, "processor_class": whole["processor_class"]})
        (folder / "preprocessor_config.json").write_text(kind, encoding="utf-8")
    _, processor = load_processor(str(folder), **stock(name).processor)
    if name == "internvl":
        assert (processor.image_processor.min_patches, processor.image_processor.max_patches) == (1, 12)
    else:
        size = stock(name).processor["size"]
        limits = {"min_pixels": size["shortest_edge"], "max_pixels": size["longest_edge"]}
        theirs = AutoProcessor.from_pretrained(folder, **limits)  # as lmms-eval calls it
        for image in ((100, 100), (448, 336), (1500, 1200)):
            counts = [ImageSlots(kind).written((image,))[0].count(kind.image_token) for kind in (processor, theirs)]
            assert counts[0] == counts[1], image
    assert before == STOCK


def test_a_setting_without_effect_is_one_line(tmp_path):
    with one_line(r"its processor was to have max_tiles 4, and has None"):
        load_processor(str(write_checkpoint("llava", tmp_path)), max_tiles=4)


def test_every_deviation_is_told_where_it_matters():
    llava, qwen = deviations("aligned_llava", ["scienceqa", "mmstar"]), deviations("qwen3_vl", ["mmstar"])
    assert any("scienceqa" in sentence for sentence in llava) and not any("scienceqa" in sentence for sentence in qwen)
    assert not any("scienceqa" in sentence for sentence in deviations("llava", ["pope"]))
    assert any("Question: " in sentence for sentence in qwen)
    assert any("ovis2" in sentence for sentence in deviations("ovis2", []))
    assert any("mistral3_vl writes `[INST]` itself" in sentence for sentence in deviations("mistral3", []))
    assert 'text_prompt = f"<s>[INST]{image_prefix}' in source("mistral3_vl")
    assert (stock("qwen3_vl_moe"), deviations("qwen3_vl_moe", ["mmstar"])) == (stock("qwen3_vl"), qwen)
