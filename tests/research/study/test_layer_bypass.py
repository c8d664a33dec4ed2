"""Layers that visual tokens skip: exact for them, and nothing changes for text alone."""

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.forward_pass import watch_layers
from research.study.layer_bypass import bypass_layers


def load(checkpoint):
    return AlignedLlavaForConditionalGeneration.from_pretrained(checkpoint).eval()


@torch.no_grad()
def states_of(model, inputs):
    """(input, output) of every decoder layer, and the logits."""
    seen = {}
    with watch_layers(model.get_decoder().layers, lambda layer, *states: seen.__setitem__(layer, states)):
        logits = model(**inputs).logits
    return seen, logits


@pytest.mark.parametrize("decoder", ["qwen2", "llama"])
def test_visual_tokens_pass_unchanged_and_text_as_before(tiny_checkpoint, decoder):
    checkpoint = tiny_checkpoint("norm", decoder)
    processor = AutoProcessor.from_pretrained(checkpoint)
    image = Image.new("RGB", (40, 30), (200, 30, 90))
    inputs = processor(images=[image], text=["a <image> is what?"], return_tensors="pt")
    plain, bypassed = load(checkpoint), load(checkpoint)
    bypass_layers(bypassed, [0])
    (theirs, their_logits), (ours, our_logits) = states_of(plain, inputs), states_of(bypassed, inputs)
    visual = inputs["input_ids"] == plain.config.image_token_id
    before, after = ours[0]
    assert torch.equal(after[visual], before[visual]) and torch.equal(before, theirs[0][0])
    assert torch.equal(after[~visual], theirs[0][1][~visual])
    assert not torch.equal(theirs[0][1][visual], before[visual])
    assert not torch.equal(ours[1][1][visual], ours[1][0][visual])  # layer 1 is not bypassed
    assert not torch.equal(our_logits, their_logits)
    text = {"input_ids": inputs["input_ids"][~visual][None]}
    assert torch.equal(states_of(bypassed, text)[1], states_of(plain, text)[1])


def test_a_layer_that_is_not_there_is_refused(tiny_checkpoint):
    with pytest.raises(UserError, match="bypassed_layers: there is no layer 2; this decoder has 0 to 1"):
        bypass_layers(load(tiny_checkpoint("norm")), [2])
