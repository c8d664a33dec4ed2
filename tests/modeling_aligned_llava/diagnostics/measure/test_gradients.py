"""`gradients`: what GWC changes, and that the model stays as it is."""

import math

import pytest
import torch
from PIL import Image

from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.measure.gradients import gradients, gradients_of
from modeling_aligned_llava.diagnostics.output.result_tables import show_gradients
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.norm_alignment import mean_embedding_norm
from tests.modeling_aligned_llava.diagnostics.measure.family_checkpoints import llava_siglip_qwen2
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.modeling_aligned_llava.tiny_parts import IMAGE


IMAGES = [
    ImageQuestion(str(i), lambda i=i: Image.effect_noise((28, 28), 40 + 20 * i).convert("RGB")) for i in range(3)
]


def test_gwc_multiplies_the_gradient_through_the_norm_by_sqrt_d_over_s(tiny_checkpoint, tmp_path):
    model, processor = load(str(tiny_checkpoint("baseline")))
    before = {name: p.clone() for name, p in model.named_parameters()}
    found = gradients(model, processor, IMAGES)
    text_norm = mean_embedding_norm(model.get_input_embeddings())
    width = model.get_input_embeddings().embedding_dim
    for group in ("|dL/dx|", "connector", "vision"):
        ratio = found["norm-gwc"][group]["mean"] / found["norm"][group]["mean"]
        assert ratio == pytest.approx(math.sqrt(width) / text_norm, rel=1e-3)
    for group in ("language", "norm", "|dL/dy|"):
        assert found["norm-gwc"][group]["mean"] == pytest.approx(found["norm"][group]["mean"], rel=1e-4)
    assert found["norm"]["|y|"]["mean"] == pytest.approx(text_norm, rel=0.01)
    assert "norm" not in found["none"] and found["none"]["connector"]["over_none"] == 1
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    show_gradients("tiny", found, tmp_path / "gradients.md")


def test_without_a_norm_gradients_are_those_of_a_plain_pass():
    model, inputs = tiny(llava_siglip_qwen2)
    found = gradients_of(model, model_parts(model), "none", inputs, 1.0, frozenset())
    model.zero_grad()
    labels = inputs["input_ids"].clone()
    first_text = int((labels[0] == IMAGE).nonzero().max()) + 1
    labels[:, : first_text + 1] = -100  # no text predicts the first token after the image
    model(**inputs, labels=labels).loss.backward()
    squares = [p.grad.double().square().sum() for p in model_parts(model).connector.parameters()]
    assert found["connector"] == pytest.approx(sum(squares).sqrt().item(), rel=1e-5)
