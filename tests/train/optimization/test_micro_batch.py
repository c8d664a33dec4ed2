"""A micro-batch without an image: the loss and gradients of plain text, zeros for tower and projector."""

import torch
from transformers import AutoProcessor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from train.optimization.micro_batch import blank_image, dummy_image


def test_only_the_zeros_are_new(tiny_checkpoint):
    model = AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm-gwc")).train()
    ids = torch.randint(5, 200, (2, 12), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}
    plain = model(**batch).loss
    plain.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    image = blank_image(model, AutoProcessor.from_pretrained(tiny_checkpoint("norm-gwc")))
    with dummy_image(model.model, image):
        loss = model(**batch).loss
    loss.backward()
    assert torch.equal(loss, plain)
    for name, parameter in model.named_parameters():
        if expected[name] is not None:
            assert torch.equal(parameter.grad, expected[name]), name
        elif "post_layernorm" in name:
            assert parameter.grad is None  # after the layer that LLaVA reads
        else:
            assert name.startswith(("model.vision_tower.", "model.multi_modal_projector.")), name
            assert not parameter.grad.any(), name
