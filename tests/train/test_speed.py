"""What saves time or memory changes neither loss nor gradients: bit-equal, or within a tolerance for rounding."""

import pytest
import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests.train.stage_results import weights
from train.data.collator import ImageTextCollator


RELATIVE = 2e-5  # and 1e-6 of the largest gradient of all: float32, another order of summation


def tokens(model, seed=0, texts=(5, 17, 9), images=(1, 2, 0)):
    """Tokenized rows with `images[i]` images and `texts[i]` tokens of text, the second half of them supervised."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for text, count in zip(texts, images, strict=True):
        words = torch.randint(5, 200, (text,), generator=generator).tolist()
        ids = [model.config.image_token_id] * (4 * count) + words
        labels = [-100] * (len(ids) - text // 2) + words[text - text // 2 :]
        rows.append({"input_ids": ids, "labels": labels, "images": []})
    return rows


def step(model, batch):
    """Loss and gradients by name; without a key-value cache, as in training."""
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(ours, theirs):
    assert ours.keys() == theirs.keys()
    largest = max(gradient.abs().max().item() for gradient in theirs.values())
    for name, gradient in theirs.items():
        torch.testing.assert_close(ours[name], gradient, rtol=RELATIVE, atol=1e-6 * largest, msg=name)


def without_images(rows):
    return rows, []


@pytest.mark.slow
def test_compiled_steps_differ_only_by_rounding(train_stage, tmp_path):
    """Adam turns a rounding error in a near-zero gradient into a fraction of its step of 7e-3."""
    compiled = {"torch_compile": "true", "torch_compile_backend": "aot_eager"}
    other = weights(train_stage(tmp_path / "compiled", 1, max_steps=2, **compiled))
    for name, tensor in weights(train_stage(tmp_path / "plain", 1, max_steps=2)).items():
        torch.testing.assert_close(other[name], tensor, rtol=0, atol=2e-5, msg=name)


def test_dropped_vision_layers_change_nothing(tiny_checkpoint):
    """The assembled tower and LLaVA's whole one, read at layer -2, give bit-equal loss and gradients."""
    dropped = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm-gwc")).train()
    config = type(dropped.config).from_dict(dropped.config.to_dict())
    config.vision_config.num_hidden_layers += 1
    config.vision_config.vision_use_head = True
    config.vision_feature_layer = -2
    whole = AlignedLlavaForConditionalGeneration(config).train()
    info = whole.load_state_dict(dropped.state_dict(), strict=False)
    assert not info.unexpected_keys and all(".layers.2." in key or ".head." in key for key in info.missing_keys)
    batch = ImageTextCollator(None, 0, without_images)(tokens(dropped))
    batch["pixel_values"] = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    (loss, gradients), (loss_whole, gradients_whole) = step(dropped, batch), step(whole, batch)
    assert loss == loss_whole and gradients.keys() == gradients_whole.keys()
    assert all(torch.equal(gradient, gradients_whole[name]) for name, gradient in gradients.items())
