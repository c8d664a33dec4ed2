"""Attention numbers: nothing is changed by reading, and the numbers are those of the weights."""

import pytest
import torch
from PIL import Image
from transformers import LlavaImageProcessor, MistralConfig

from modeling_aligned_llava.diagnostics.attention import (
    AttentionReader,
    attention,
    attention_weights,
    box_shares,
    draw_maps,
    grid_of,
    seen_part,
    show_attention,
)
from modeling_aligned_llava.diagnostics.instruments.decoder_states import watch_decoder_input
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load
from modeling_aligned_llava.inspection.forward_pass import watch_layers
from modeling_aligned_llava.inspection.model_parts import model_parts
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import MEASURED, PROFILED
from tests.modeling_aligned_llava.tiny_families import random_pair, tiny
from tests.modeling_aligned_llava.tiny_parts import IMAGE, TEXT, clip_llava, model_of, siglip, siglip_llava


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
            logits = model(**inputs, use_cache=False).logits
    assert torch.equal(logits, expected)
    assert model.config._attn_implementation == before
    assert len(reader.numbers) == (1 if name == "lfm2_vl" else len(parts.layers))  # half of LFM2's layers convolve
    assert all(0 < numbers["mass"] < 1 and 0 <= numbers["entropy"] <= 1.0001 for numbers in reader.numbers.values())


def test_the_numbers_are_those_of_the_attention_weights():
    model, inputs = tiny("llava")
    reader = AttentionReader()
    inside = box_shares(((0, 0, 14, 14),), (0, 0, 28, 28), (4, 4))
    assert inside.sum() == 4 and inside[0, 0] == 1 and inside[2, 2] == 0
    seen = []
    reader.begin(inputs, ((0, 0, 14, 14),), (0, 0, 28, 28))
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


# Rows and columns for images of 56 x 28 and of 28 x 28 pixels; None where tokens have no place in the image.
GRIDS = {
    "llava": [(4, 4), (4, 4)],
    "aligned_llava": [(4, 4), (4, 4)],
    "pixtral": [(2, 4), (4, 4)],
    "mistral3": [(1, 2), (2, 2)],
    "llava_next": [None, None],  # the whole image, and tiles of it
    "llava_onevision": [None, None],
    "qwen2_vl": [(2, 4), (2, 2)],
    "qwen2_5_vl": [(2, 4), (2, 2)],
    "qwen3_vl": [(2, 4), (2, 2)],
    "glm4v": [(2, 4), (2, 2)],
    "internvl": [None, (2, 2)],  # one tile alone is a grid
    "idefics3": [None, None],
    "paligemma": [(4, 4), (4, 4)],
    "gemma3": [(2, 2), (2, 2)],
    "ovis2": [None, (2, 2)],
    "blip_2": [None, None],  # 4 queries of a Q-Former, though 16 patches could be merged to 2 x 2
    "kosmos_2": [None, None],
    "lfm2_vl": [(1, 2), (2, 2)],
    "kimi_k25": [(2, 4), (2, 2)],
    "hunyuan_vl": [(2, 4), (2, 2)],
}


def noise(width, height):
    pixels = torch.randint(60, 200, (height, width, 3), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


@pytest.mark.parametrize("name", GRIDS)
def test_a_grid_is_the_one_that_the_processor_makes_or_none(name):
    """Where there is one, painting over the first cell of the square changes the first visual token most."""
    builds = {**MEASURED, **{key: build for key, (build, _) in PROFILED.items()}}
    model, processor = random_pair(builds[name])
    states = []

    def grid(picture):
        inputs = inputs_of(processor, ImageQuestion("", lambda: picture), "cpu", torch.float32)
        keep = lambda entering, masks: states.append(entering[masks["visual"]])  # noqa: E731
        with torch.no_grad(), watch_decoder_input(model, model_parts(model), keep):
            model(**inputs, use_cache=False)
        return grid_of(len(states[-1]), inputs, model.config)

    painted, square = noise(28, 28), GRIDS[name][1]
    painted.paste((255, 0, 0), (0, 0, 28 // (square or (1, 1))[1], 28 // (square or (1, 1))[0]))
    assert [grid(noise(56, 28)), grid(noise(28, 28)), grid(painted)] == [*GRIDS[name], square]
    assert square is None or (states[2] - states[1]).norm(dim=-1).argmax() == 0


def test_numbers_about_places_are_left_out_with_a_word_where_there_is_no_grid(tmp_path, capsys):
    model, processor = random_pair("internvl")
    sample = [
        ImageQuestion(
            str(size), lambda size=size: Image.effect_noise(size, 60).convert("RGB"), boxes=((0, 0, 14, 28),)
        )
        for size in ((56, 28), (28, 28))
    ]
    attended = attention(model, processor, sample)
    assert attended["with_grid"] == attended["plain"][0]["bottom_third"]["images"] == 1
    assert attended["plain"][0]["mass"]["images"] == 2
    show_attention("tiny", attended)
    assert "are of 1 of 2 images: the visual tokens of the others are not one grid" in capsys.readouterr().out
    assert "bottom_third" not in attention(model, processor, sample[:1])["plain"][0]


@pytest.mark.parametrize("window", [8, 1])
def test_an_image_outside_a_window_has_no_place_and_no_weight(window):
    """With a window of 8 tokens, most of the text does not see the image any more; with one of 1, none of it."""
    config = MistralConfig(**TEXT, sliding_window=window)
    config._attn_implementation = "eager"
    fields = {"image_token_index": IMAGE, "vision_feature_select_strategy": "full"}
    model, processor = random_pair(lambda: (model_of("Llava", siglip(), config, **fields), siglip_llava()))
    inputs = inputs_of(processor, ImageQuestion("", lambda: noise(28, 28)), "cpu", torch.float32)
    reader, seen = AttentionReader(), []
    reader.begin(inputs)
    with torch.no_grad(), reader.reading(model, model_parts(model)):
        with attention_weights(model, model_parts(model), lambda _, weights: seen.append(weights[0])):
            model(**inputs, use_cache=False)
    numbers = reader.numbers[0]
    mass = seen[0][:, reader.query].double()[..., reader.visual].sum(-1)
    assert numbers["gain"] == pytest.approx((mass * window / 16).mean().item(), rel=1e-6)  # each sees so many tokens
    if window == 1:
        assert (numbers["mass"], reader.maps) == (0, {})
        assert "entropy" not in numbers and "bottom_third" not in numbers
    else:
        assert reader.maps[0].sum() == pytest.approx(1)


def test_a_box_lies_in_what_is_left_of_the_image():
    """A crop leaves the middle 28 of 56 columns of an image, a square with margins has the image in its middle."""
    cropping = clip_llava().image_processor
    assert seen_part(cropping, (56, 28)) == (0, 0, 56, 28)  # resized to a square
    cropping.size = {"shortest_edge": 28}
    assert seen_part(cropping, (56, 28)) == (14, 0, 42, 28)
    inside = box_shares(((14, 0, 28, 14),), (14, 0, 42, 28), (4, 4))
    assert inside.sum() == 4 and inside[0, 0] == 1
    assert not box_shares(((0, 0, 14, 28),), (14, 0, 42, 28), (4, 4)).any()
    padding = LlavaImageProcessor(do_pad=True, do_center_crop=False)
    assert seen_part(padding, (56, 28)) == (0, -14, 56, 42)


def test_attention_within_boxes_is_tabulated_and_drawn(tiny_checkpoint, tmp_path):
    image = ImageQuestion("noise", lambda: Image.effect_noise((28, 28), 80).convert("RGB"), boxes=((0, 0, 14, 28),))
    model, processor = load(str(tiny_checkpoint("baseline")))
    attended = attention(model, processor, [image] * 3)
    assert attended["plain"][0]["box"]["images"] == 3
    show_attention("tiny", attended, tmp_path / "attention.md")
    draw_maps(attended["maps"], tmp_path / "attention.svg")
    assert (tmp_path / "attention.svg").stat().st_size > 1000
    assert "bottom third" in (tmp_path / "attention.md").read_text(encoding="utf-8")
