"""`gradients`: what GWC changes, and that the model stays as it is."""

import math

import pytest
import torch
from PIL import Image

from modeling_aligned_llava import align
from modeling_aligned_llava.diagnostics.gradients import gradients, gradients_of, show_gradients
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load
from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.model_parts import FAMILIES, model_parts
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm
from modeling_aligned_llava.norm_alignment import mean_embedding_norm
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import PROFILED, llava_siglip_qwen2
from tests.modeling_aligned_llava.tiny_families import random_pair, tiny, write_checkpoint
from tests.modeling_aligned_llava.tiny_parts import IMAGE
from tests.one_line import one_line


IMAGES = [
    ImageQuestion(str(i), lambda i=i: Image.effect_noise((28, 28), 40 + 20 * i).convert("RGB")) for i in range(3)
]


def test_gwc_multiplies_the_gradient_through_the_norm_by_sqrt_d_over_s(tiny_checkpoint, tmp_path):
    model, processor = load(str(tiny_checkpoint("baseline")))
    before = {name: p.clone() for name, p in model.named_parameters()}
    variants = gradients(model, processor, IMAGES)
    text_norm = mean_embedding_norm(model.get_input_embeddings())
    width = model.get_input_embeddings().embedding_dim
    for group in ("|dL/dx|", "connector", "vision"):
        ratio = variants["norm-gwc"][group]["mean"] / variants["norm"][group]["mean"]
        assert ratio == pytest.approx(math.sqrt(width) / text_norm, rel=1e-3)
    for group in ("language", "norm", "|dL/dy|"):
        assert variants["norm-gwc"][group]["mean"] == pytest.approx(variants["norm"][group]["mean"], rel=1e-4)
    assert variants["norm"]["|y|"]["mean"] == pytest.approx(text_norm, rel=0.01)
    assert "norm" not in variants["none"] and variants["none"]["connector"]["over_none"] == 1
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    show_gradients("tiny", variants, tmp_path / "gradients.md")


def test_without_a_norm_gradients_are_those_of_a_plain_pass():
    model, inputs = tiny(llava_siglip_qwen2)
    numbers = gradients_of(model, model_parts(model), "none", inputs, 1.0, frozenset())
    model.zero_grad()
    labels = inputs["input_ids"].clone()
    first_text = int((labels[0] == IMAGE).nonzero().max()) + 1
    labels[:, : first_text + 1] = -100  # no text predicts the first token after the image
    model(**inputs, labels=labels).loss.backward()
    squares = [p.grad.double().square().sum() for p in model_parts(model).connector.parameters()]
    assert numbers["connector"] == pytest.approx(sum(squares).sqrt().item(), rel=1e-5)


@pytest.mark.parametrize(
    "family", [*(name for name in FAMILIES if name != "paligemma"), "llava_granite", "granite_vision"]
)
def test_the_norm_is_where_align_puts_it(family):
    """A decoder that multiplies its input, as Granite's, multiplies what leaves the norm."""
    build = PROFILED[family][0] if family in PROFILED else family
    model, processor = random_pair(build)
    picture = IMAGES[0].open()
    image = ImageQuestion("", lambda: picture)
    with_norm = gradients(model, processor, [image])["norm"]
    aligned, _ = random_pair(build)
    align(aligned, "norm")
    inputs = inputs_of(processor, image, "cpu", torch.float32)
    plain = gradients_of(aligned, model_parts(aligned), "none", inputs, 1.0, special_ids(processor.tokenizer))
    of_norm = [parameter.grad.double().square().sum() for parameter in alignment_norm(aligned).parameters()]
    whole = (plain["connector"] ** 2 - sum(of_norm).item()) ** 0.5  # its norm is part of its connector
    assert with_norm["connector"]["mean"] == pytest.approx(whole, rel=1e-4)
    for name in ("loss", "|y|", "|dL/dy|", "vision", "language"):
        assert with_norm[name]["mean"] == pytest.approx(plain[name], rel=1e-4), name


def test_a_loss_that_sees_its_targets_is_refused(tmp_path, run):
    IMAGES[0].open().save(tmp_path / "a.png")
    with one_line("paligemma: no gradients: its decoder sees the tokens that it predicts"):
        run("gradients", write_checkpoint("paligemma", tmp_path / "model"), "--images", tmp_path / "a.png")


def test_quantized_weights_have_no_gradients(tiny_checkpoint):
    model, processor = load(str(tiny_checkpoint("baseline")))
    model.config.quantization_config = {"quant_method": "gptq"}
    with one_line("is quantized: gradients of its parts need whole weights"):
        gradients(model, processor, IMAGES)


def test_half_precision_has_no_gradients(tiny_checkpoint):
    """Entries of a gradient are often below 6e-8, the smallest number of float16."""
    model, processor = load(str(tiny_checkpoint("baseline")), dtype="float16")
    with one_line("gradients vanish in float16 by rounding alone: choose --dtype bfloat16 or float32"):
        gradients(model, processor, IMAGES)


@pytest.mark.parametrize("command", ["profile", "attention", "encoders"])
def test_states_that_overflow_are_one_line(command, tmp_path, run):
    model, processor = random_pair("llava")
    part = model.model.vision_tower if command == "encoders" else model.model.language_model.layers[1]
    torch.nn.init.constant_(next(p for name, p in part.named_parameters() if "mlp" in name), 1e5)
    model.half().save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    IMAGES[0].open().save(tmp_path / "a.png")
    with one_line(r"model: .*states.* are not finite in float16: choose --dtype bfloat16 or float32"):
        run(command, tmp_path / "model", "--images", tmp_path / "a.png", "--dtype", "float16")


def test_embeddings_that_are_not_finite_are_one_line(tmp_path, run):
    model, processor = random_pair("llava")
    model.get_input_embeddings().weight.data[50, 3] = torch.nan
    model.save_pretrained(tmp_path / "model")
    processor.save_pretrained(tmp_path / "model")
    with one_line("the norms of text embeddings are not finite in float32: its weights are damaged"):
        run("embeddings", tmp_path / "model")
