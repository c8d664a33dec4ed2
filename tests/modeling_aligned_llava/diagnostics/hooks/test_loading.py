"""What the loaders of the diagnostics accept, and in which precision. What they refuse: loading/test_checkpoint.py."""

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.diagnostics.hooks.loading import load, load_encoder
from modeling_aligned_llava.loading.checkpoint import load_part
from tests.modeling_aligned_llava.loading.test_checkpoint import rewrite


def test_an_encoder_may_lack_the_pooling_head_that_is_not_measured(tiny_backbones, tmp_path):
    def drop_head(state):
        return {name: value for name, value in state.items() if ".head." not in name and not name.startswith("head.")}

    encoder, _ = load_encoder(str(rewrite(tiny_backbones.vision, tmp_path / "headless", drop_head)))
    assert encoder.main_input_name == "pixel_values"


def test_models_that_are_compared_have_one_precision(tiny_checkpoint, tmp_path):
    """Hub checkpoints are bfloat16, trained ones float32; both are measured in the precision of the device."""
    half = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("baseline"), dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    load_part(AutoProcessor, tiny_checkpoint("baseline")).save_pretrained(tmp_path / "half")
    for path in (tmp_path / "half", tiny_checkpoint("norm")):
        assert load(str(path))[0].dtype == torch.float32
