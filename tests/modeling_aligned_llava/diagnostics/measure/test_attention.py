"""Attention numbers: nothing is changed by reading, and the numbers are those of the weights."""

import pytest
import torch
from PIL import Image

from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.measure.attention import (
    AttentionReader,
    attention,
    attention_weights,
    box_shares,
    grid_of,
)
from modeling_aligned_llava.diagnostics.output.figures import draw_maps
from modeling_aligned_llava.diagnostics.output.result_tables import show_attention
from modeling_aligned_llava.inspection.layer_probe import watch_layers
from modeling_aligned_llava.inspection.model_parts import model_parts
from tests.modeling_aligned_llava.diagnostics.measure.family_checkpoints import MEASURED
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.modeling_aligned_llava.tiny_parts import IMAGE
from tests.one_line import one_line


@pytest.mark.parametrize("name", MEASURED)
def test_logits_are_those_of_eager_attention_to_the_bit(name):
    model, inputs = tiny(MEASURED[name])
    parts = model_parts(model)
    before = model.config._attn_implementation
    reader = AttentionReader()
    reader.begin({})
    with torch.no_grad():
        model.set_attn_implementation("eager")
        expected = model(**inputs, use_cache=False).logits
        model.set_attn_implementation(before)
        with reader.reading(model, parts):
            found = model(**inputs, use_cache=False).logits
    assert torch.equal(found, expected)
    assert model.config._attn_implementation == before
    assert len(reader.numbers) == (1 if name == "lfm2_vl" else len(parts.layers))  # half of LFM2's layers convolve
    assert all(0 < numbers["mass"] < 1 and 0 <= numbers["entropy"] <= 1.0001 for numbers in reader.numbers.values())


def test_the_numbers_are_those_of_the_attention_weights():
    model, inputs = tiny("llava")
    reader = AttentionReader()
    inside = box_shares(((0, 0, 14, 14),), (28, 28), (4, 4))
    assert inside.sum() == 4 and inside[0, 0] == 1 and inside[2, 2] == 0
    seen = []
    reader.begin({}, ((0, 0, 14, 14),), (28, 28))
    with torch.no_grad(), reader.reading(model, model_parts(model)):
        with attention_weights(model, model_parts(model), lambda layer, weights: seen.append(weights)):
            model(**inputs, use_cache=False)
    visual = inputs["input_ids"][0] == IMAGE
    queries = visual.nonzero().max() + 1
    on_image = seen[0][0].double()[:, queries:][:, :, visual]
    assert reader.numbers[0]["mass"] == pytest.approx(on_image.sum(-1).mean().item(), rel=1e-6)
    share = (on_image / on_image.sum(-1, keepdim=True)).mean((0, 1)).view(4, 4)
    rows = share.sum(1)
    assert reader.numbers[0]["bottom_third"] == pytest.approx((rows[3] + rows[2] / 3).item(), rel=1e-6)
    assert reader.numbers[0]["box"] == pytest.approx(4 * share[:2, :2].sum().item(), rel=1e-6)


def test_shuffling_moves_visual_tokens_only():
    model, inputs = tiny("llava")
    plain, shuffled = [], []
    for states, shuffle in ((plain, False), (shuffled, True)):
        reader = AttentionReader(shuffle=shuffle)
        reader.begin({})
        with torch.no_grad(), reader.reading(model, model_parts(model)):
            # hooks run in the order in which they were set: this one sees what the reader left
            with watch_layers(
                model_parts(model).layers[:1], lambda _, before, after, into=states: into.append(before)
            ):
                model(**inputs, use_cache=False)
    visual = inputs["input_ids"][0] == IMAGE
    assert torch.equal(plain[0][0, ~visual], shuffled[0][0, ~visual])
    assert not torch.equal(plain[0][0, visual], shuffled[0][0, visual])
    assert torch.equal(plain[0][0, visual].sort(0).values, shuffled[0][0, visual].sort(0).values)


def test_visual_tokens_are_a_grid_if_square_or_if_the_processor_says_so():
    assert grid_of(16, {}) == (4, 4)
    assert grid_of(15, {}) is None
    assert grid_of(6, {"image_grid_thw": torch.tensor([[1, 4, 6]])}) == (2, 3)


def test_attention_within_boxes_is_tabulated_and_drawn(tiny_checkpoint, tmp_path):
    image = ImageQuestion("noise", lambda: Image.effect_noise((28, 28), 80).convert("RGB"), boxes=((0, 0, 14, 28),))
    model, processor = load(str(tiny_checkpoint("baseline")))
    found = attention(model, processor, [image] * 3)
    assert found["plain"][0]["box"]["images"] == 3
    show_attention("tiny", found, tmp_path / "attention.md")
    draw_maps(found["maps"], tmp_path / "attention.svg")
    assert (tmp_path / "attention.svg").stat().st_size > 1000
    assert "bottom third" in (tmp_path / "attention.md").read_text(encoding="utf-8")


def test_a_corrupt_image_is_named(tiny_checkpoint, tmp_path, run):
    Image.effect_noise((28, 28), 80).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"not an image")
    with one_line(r"b\.png cannot be read as an image"):
        run("attention", tiny_checkpoint("baseline"), "--images", tmp_path)
