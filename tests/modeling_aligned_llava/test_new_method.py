"""A norm variant is added as docs/adding_a_norm_variant.md says: an entry in methods.yaml, and its name in METHODS."""

import pytest

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration, methods
from modeling_aligned_llava import configuration_aligned_llava as configuration
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.norm_alignment import target_gain


NAME = "norm-double"
ENTRY = {"projector_norm": "layernorm", "norm_init": "text", "target_scale": 2.0, "compensation_exponent": 0.0}


@pytest.fixture
def entry(monkeypatch):
    known = {**methods._methods(), NAME: ENTRY}
    monkeypatch.setattr(methods, "_methods", lambda: known)


def test_an_entry_without_its_name_is_refused_in_one_line(entry):
    with pytest.raises(UserError, match="add its name to METHODS"):
        methods.method_fields(NAME)


def test_an_entry_and_its_name_are_an_arm(entry, tiny_backbones, tmp_path, monkeypatch):
    names = (*configuration.METHODS, NAME)
    for module in (configuration, methods):
        monkeypatch.setattr(module, "METHODS", names)
    fields = methods.method_fields(NAME)
    out = assemble(tiny_backbones.vision, tiny_backbones.qwen2, tmp_path / "aligned", fields=fields)
    config = AlignedLlavaConfig.from_pretrained(out)
    assert (config.method, config.target) == (NAME, pytest.approx(2 * config.text_norm))
    norm = AlignedLlavaForConditionalGeneration.from_pretrained(out).model.multi_modal_projector.norm
    assert norm.weight.tolist() == pytest.approx([2 * target_gain(config.text_norm, 32)] * 32)


def test_a_combination_without_a_name_is_tried_first(tiny_checkpoint):
    fields = {**methods.method_fields("norm"), "method": None, "target_scale": 2.0}
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("baseline"), **fields)
    assert model.config.method is None and model.config.target == pytest.approx(2 * model.config.text_norm)
