"""Precision as docs/train.md says: matrices that are not trained, final weights and the norm."""

import pytest
import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests.train.stage_results import weights


NORM = {"model.multi_modal_projector.norm.weight", "model.multi_modal_projector.norm.bias"}


@pytest.mark.parametrize("stage", [1, 2])
def test_final_weights_are_bfloat16_and_the_norm_float32(train_stage, tmp_path, stage):
    folder = train_stage(tmp_path, stage, max_steps=1, bf16="true")
    for name, tensor in weights(folder).items():
        assert tensor.dtype == (torch.float32 if name in NORM else torch.bfloat16), name
    loaded = AlignedLlavaForConditionalGeneration.from_pretrained(folder)
    assert loaded.dtype == torch.bfloat16
    assert {name for name, p in loaded.named_parameters() if p.dtype == torch.float32} == NORM


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


@pytest.mark.parametrize(("bf16", "save_dtype"), [("true", "float32"), ("false", "bfloat16")])
def test_the_final_precision_can_be_chosen(train_stage, tmp_path, bf16, save_dtype):
    saved = weights(train_stage(tmp_path, 2, max_steps=1, bf16=bf16, save_dtype=save_dtype))
    assert {tensor.dtype for name, tensor in saved.items() if name not in NORM} == {getattr(torch, save_dtype)}
    assert {saved[name].dtype for name in NORM} == {torch.float32}
