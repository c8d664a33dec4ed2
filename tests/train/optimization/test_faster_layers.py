"""Compiled layers, kernels of the Hub and attention without a mask: the same step, or one line."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from tests.one_line import one_line
from tests.train.stage_results import lines, weights
from train.data.row_tokens import IGNORE_INDEX
from train.optimization.micro_batch import without_padding_mask
from train.optimization.parameter_groups import freeze, group_parameters
from train.stage import run_stage


def padded_batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (3, 20), generator=generator)
    mask = torch.arange(20) < torch.tensor([[20], [13], [6]])
    labels = ids.masked_fill(~mask, IGNORE_INDEX)
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long(), "labels": labels}


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("decoder", ["qwen2", "llama"])
def test_rows_padded_on_the_right_need_no_mask(tiny_checkpoint, decoder, attention):
    model = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("norm-gwc", decoder), dtype=torch.float64)
    model.model.language_model.set_attn_implementation(attention)
    masked = model(**padded_batch()).loss
    expected = torch.autograd.grad(masked, model.lm_head.weight)
    with without_padding_mask(model.model):
        loss = model(**padded_batch()).loss
    torch.testing.assert_close(loss, masked, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(loss, model.lm_head.weight), expected, rtol=1e-9, atol=1e-12)


def test_nothing_of_a_frozen_tower_is_kept_for_the_backward_pass(tiny_checkpoint):
    model = AutoModelForImageTextToText.from_pretrained(tiny_checkpoint("norm-gwc"))
    freeze(
        model, group_parameters(model, {"multi_modal_projector": 1e-3}, ["vision_tower", "language_model", "lm_head"])
    )
    kept: list[torch.Tensor] = []

    def keep(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model.model.vision_tower(torch.rand(2, 3, 28, 28), output_hidden_states=True)
        assert not kept
        model.get_image_features(torch.rand(2, 3, 28, 28))
        assert kept  # of the projector


@pytest.mark.slow
def test_compiled_layers_take_the_same_steps(train_stage, tmp_path, capsys):
    """Compiled once for all lengths and for both stages of a probe and of training."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = train_stage(tmp_path / "compiled", 2, max_steps=3, compile_layers="true")
    assert "layers are compiled" in capsys.readouterr().out
    counted = torch._dynamo.utils.counters
    assert counted["stats"]["unique_graphs"] <= 4 and not counted["graph_break"]
    plain = train_stage(tmp_path / "plain", 2, max_steps=3)
    for one, other in zip(lines(compiled), lines(plain), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)
    expected = weights(plain)
    for name, tensor in weights(compiled).items():
        torch.testing.assert_close(tensor, expected[name], rtol=0, atol=2e-5, msg=name)


def test_a_compiler_that_fails_is_one_line_and_training_goes_on(train_stage, tmp_path, capsys, monkeypatch):
    def failing(function, **kwargs):
        raise RuntimeError("no compiler found\nwith a long trace")

    monkeypatch.setattr(torch, "compile", failing)
    folder = train_stage(tmp_path, 1, max_steps=1, compile_layers="true")
    assert "layers are not compiled, because torch.compile fails here: no compiler found\n" in capsys.readouterr().out
    assert (folder / "training_complete.json").exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"compile_layers": "maybe"}, "compile_layers must be true, false or auto, not 'maybe'"),
        ({"compile_layers": "true", "torch_compile": "true"}, "torch_compile compiles the whole model"),
        ({"use_liger_kernel": "true"}, "use_liger_kernel: use use_kernels, as TRL advises"),
        (
            {"attn_implementation": "nonsense"},
            'attn_implementation: Specified `attn_implementation="nonsense"` is not',
        ),
        (
            {"attn_implementation": "flash_attention_2"},
            "attn_implementation: FlashAttention2 .* doesn't seem to be inst",
        ),
        ({"use_kernels": "true"}, "use_kernels: Kernels are not available"),
    ],
)
def test_wrong_settings_are_one_line(stage_arguments, tmp_path, settings, message):
    with one_line(message):
        run_stage(stage_arguments(1, "norm", tmp_path, **settings))
