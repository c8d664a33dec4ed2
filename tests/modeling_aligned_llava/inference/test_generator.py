"""What a generator refuses, and what it renders, before anything is answered."""

import json
from types import SimpleNamespace

import pytest

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference import generator as module
from modeling_aligned_llava.inference.generator import Generator, load_generator
from modeling_aligned_llava.inference.prompt import user_turn
from modeling_aligned_llava.loading.checkpoint import sees_images
from tests.modeling_aligned_llava.tiny_families import write_checkpoint


@pytest.fixture(scope="module")
def ovis(tmp_path_factory):
    return load_generator(str(write_checkpoint("ovis2", tmp_path_factory.mktemp("ovis2") / "tiny")))


def test_no_token_of_an_image_survives_in_a_document(ovis):
    """Ovis2 writes `<IMG_ATOM>` in place of `<image>`: both would open a slot."""
    prompt = ovis.render("what is <image>, <IMG_ATOM> and <IMG_<image>ATOM>?", images=0)
    assert prompt == ovis.render("what is ,  and ?", images=0)


def test_a_system_prompt_stands_before_the_question(ovis):
    written = user_turn(ovis.processor, "What?", 1, "Be brief.")
    assert written.index("system") < written.index("Be brief.") < written.index("<image>") < written.index("What?")
    asked = Generator(ovis.model, ovis.processor, "Be brief.").render("What?", 1)
    assert asked == written


def test_a_processor_that_cannot_be_used_is_named(tiny_llava, monkeypatch):
    def absent(*arguments, **options):
        raise ImportError("Package `num2words` is required to run SmolVLM processor.")

    def without_image_token(*arguments, **options):
        return SimpleNamespace()

    for load, message in (
        (absent, "`num2words` is required"),
        (without_image_token, "llava cannot be served: its processor names no image token"),
    ):
        monkeypatch.setattr(module.AutoProcessor, "from_pretrained", load)
        with pytest.raises(UserError, match=message):
            load_generator(str(tiny_llava))


@pytest.mark.parametrize(
    ("config", "files", "expected"),
    [
        ({"model_type": "llava", "vision_config": {}}, [], True),
        ({"model_type": "fuyu"}, [], True),
        ({"model_type": "paligemma"}, ["preprocessor_config.json"], True),
        ({"model_type": "their_own", "auto_map": {"AutoModelForImageTextToText": "code.Model"}}, [], True),
        ({"model_type": "their_own", "auto_map": {"AutoModelForCausalLM": "code.Model"}}, [], False),
        ({"model_type": "qwen2"}, [], False),
        ({"model_type": "llava_llama", "mm_vision_tower": "clip"}, [], "llava_llama cannot be served"),
        ({"model_type": "moondream1"}, ["preprocessor_config.json"], "moondream1 cannot be served"),
        ({}, [], "a model without a type cannot be served"),
    ],
)
def test_a_folder_is_a_vision_language_model_a_language_model_or_refused(tmp_path, config, files, expected):
    for name in files:
        (tmp_path / name).write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps(config))
    if isinstance(expected, bool):
        assert sees_images(tmp_path) == expected
    else:
        with pytest.raises(UserError, match=expected):
            sees_images(tmp_path)
