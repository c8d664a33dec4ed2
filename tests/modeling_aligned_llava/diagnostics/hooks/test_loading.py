"""No diagnostic measures random weights: each loader names the tensor that its checkpoint lacks."""

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor

from modeling_aligned_llava.diagnostics.hooks.loading import load, load_encoder, load_language
from modeling_aligned_llava.loading.checkpoint import load_part
from tests.modeling_aligned_llava.loading.test_checkpoint import rewrite, without
from tests.one_line import one_line


@pytest.mark.parametrize(
    ("loader", "source", "tensor"),
    [
        (load, "norm", "linear_1.weight"),
        (load_language, "norm", "embed_tokens.weight"),
        (load_language, "qwen2", "layers.1.mlp.up_proj.weight"),
        (load_encoder, "norm", "encoder.layers.0.mlp.fc1.weight"),
        (load_encoder, "vision", "encoder.layers.2.mlp.fc1.weight"),
    ],
)
def test_a_missing_tensor_is_named(tiny_checkpoint, tiny_backbones, tmp_path, loader, source, tensor):
    folder = tiny_checkpoint("norm") if source == "norm" else getattr(tiny_backbones, source)
    loader(str(folder))
    holed = without(folder, tmp_path / "holed", tensor)
    with one_line(rf"holed lacks the tensor .*{tensor}"):
        loader(str(holed))


def test_an_encoder_may_lack_the_pooling_head_that_is_not_measured(tiny_backbones, tmp_path):
    def drop_head(state):
        return {name: value for name, value in state.items() if ".head." not in name and not name.startswith("head.")}

    encoder, _, _ = load_encoder(str(rewrite(tiny_backbones.vision, tmp_path / "headless", drop_head)))
    assert encoder.main_input_name == "pixel_values"


def test_models_that_are_compared_have_one_precision(tiny_checkpoint, tmp_path):
    """Hub checkpoints are bfloat16, trained ones float32; both are measured in the precision of the device."""
    half = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("baseline"), dtype=torch.bfloat16)
    half.save_pretrained(tmp_path / "half")
    load_part(AutoProcessor, tiny_checkpoint("baseline")).save_pretrained(tmp_path / "half")
    for path in (tmp_path / "half", tiny_checkpoint("norm")):
        assert load(str(path))[0].dtype == torch.float32
