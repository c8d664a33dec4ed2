"""In which precision the diagnostics load. What they refuse: loading/test_checkpoint.py."""

import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.loading.checkpoint import load_part


def test_models_that_are_compared_have_one_precision(tiny_checkpoint, tmp_path):
    """Hub checkpoints are bfloat16, trained ones float32; both are measured in the precision of the device."""
    half = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("baseline"), dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    load_part(AutoProcessor, tiny_checkpoint("baseline")).save_pretrained(tmp_path / "half")
    for path in (tmp_path / "half", tiny_checkpoint("norm")):
        assert load(str(path))[0].dtype == torch.float32
