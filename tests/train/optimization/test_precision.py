"""Precision as docs/train.md says: matrices that are not trained, final weights and the norm."""

import pytest
import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests.train.stage_results import weights


NORM = {"model.multi_modal_projector.norm.weight", "model.multi_modal_projector.norm.bias"}


@pytest.mark.parametrize(
    ("stage", "bf16", "chosen", "expected"),
    [
        (1, "true", {}, torch.bfloat16),
        (2, "true", {}, torch.bfloat16),
        (2, "true", {"save_dtype": "float32"}, torch.float32),
        (2, "false", {"save_dtype": "bfloat16"}, torch.bfloat16),
    ],
)
def test_final_weights_are_bfloat16_or_as_chosen_and_the_norm_float32(
    train_stage, tmp_path, stage, bf16, chosen, expected
):
    folder = train_stage(tmp_path, stage, max_steps=1, bf16=bf16, **chosen)
    loaded = AlignedLlavaForConditionalGeneration.from_pretrained(folder)
    assert loaded.dtype == expected
    for tensors in (weights(folder), dict(loaded.named_parameters())):
        for name, tensor in tensors.items():
            assert tensor.dtype == (torch.float32 if name in NORM else expected), name


def test_stage_1_rounds_matrices_that_it_does_not_train(train_stage, tmp_path):
    folder = train_stage(tmp_path, 1, max_steps=1, bf16="true", save_dtype="float32")
    before, after = weights(folder / "assembled"), weights(folder)
    for name, tensor in before.items():
        if "multi_modal_projector" not in name:
            assert torch.equal(after[name], tensor.bfloat16().float() if tensor.dim() > 1 else tensor), name
    assert not any(torch.equal(after[name], before[name].bfloat16().float()) for name in before if "linear_" in name)


def test_a_tied_head_is_saved_once(train_stage, tiny_checkpoint, tmp_path):
    start = tiny_checkpoint("norm-gwc", "llama")
    saved = weights(train_stage(tmp_path, 2, max_steps=1, model_name_or_path=start, bf16="true"))
    assert saved.keys() == weights(start).keys() and "lm_head.weight" not in saved
