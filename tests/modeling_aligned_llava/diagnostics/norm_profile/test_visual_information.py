"""Visual information: 1 for the features themselves, falling with noise, near chance for shuffled images, and in every
family of the features that a visual token was made of."""

import pytest
import torch
from torch.nn.functional import normalize

from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import measuring
from modeling_aligned_llava.diagnostics.norm_profile.visual_information import (
    TOKENS,
    ByRows,
    TokenSample,
    overlaps,
)
from modeling_aligned_llava.inspection.model_parts import model_parts
from tests.modeling_aligned_llava.diagnostics.family_checkpoints import MEASURED
from tests.modeling_aligned_llava.tiny_families import tiny


FEATURES, LAYER_0 = "features that the connector reads", "visual tokens entering layer 0"
MIXED = {"mistral3", "idefics3", "smolvlm", "gemma3", "aya_vision", "lfm2_vl"}  # their connectors merge squares
SHAPES = {
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen3_vl"), (-1, 32)),
    "kimi_k25": (-1, 4, 32),
}  # merge four


def random(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def summary(features, *layers):
    """Of images [images, tokens, E] and the states [images, tokens, D] of layers."""
    sample = TokenSample(len(features))
    for number, own in enumerate(features):
        places = sample.places(torch.ones(1, len(own), dtype=torch.bool))[1]
        sample.add(own[places], [states[number][places] for states in layers])
    return sample.summary()


def test_features_share_all_with_themselves_less_with_noise_and_nothing_with_other_images():
    features, noise = random(25, 20, 24), random(25, 20, 24, seed=1)
    rotation = torch.linalg.qr(random(24, 24))[0]
    measured = summary(features, 5 * features @ rotation, *(features + scale * noise for scale in (0.3, 1, 3)), noise)
    assert measured["mean"][0] == 1 and (measured["tokens"], measured["images"]) == (TOKENS, 25)
    assert measured["mean"] == sorted(measured["mean"], reverse=True) and measured["mean"][3] < 0.5
    chance = 10 / (TOKENS - 1)
    assert [measured["mean"][-1], *measured["shuffled"]] == pytest.approx([chance] * 6, abs=0.01)
    for mean, (low, high) in zip(measured["mean"][1:], measured["ci95"][1:], strict=True):
        assert low < mean < high < low + 0.08


def test_an_interval_shrinks_with_images():
    def width(images):
        features = random(images, 5, 24)
        ((low, high),) = summary(features, features + random(images, 5, 24, seed=1))["ci95"]
        return high - low

    assert width(100) < 0.7 * width(25)


def test_the_interval_is_that_of_leaving_each_image_out():
    features = random(25, 20, 24)
    states = features + random(25, 20, 24, seed=1)
    measured = summary(features, states)
    kept, without = [features.flatten(0, 1), states.flatten(0, 1)], []
    similar = [normalize(x - x.mean(0), dim=-1) @ normalize(x - x.mean(0), dim=-1).T for x in kept]
    for image in range(25):
        others = torch.arange(500) // 20 != image
        near, reference = (s[others][:, others].fill_diagonal_(-9).topk(10).indices for s in similar)
        without.append(overlaps(near, reference).mean())
    spread = torch.stack(without).std(correction=0) * 24**0.5
    assert measured["ci95"][0] == pytest.approx([measured["mean"][0] + s * 1.96 * spread.item() for s in (-1, 1)])


def test_one_image_has_no_interval_and_few_tokens_no_value():
    features = random(1, 200, 8)
    alone = summary(features, features)
    assert alone["mean"] == [1] and alone["ci95"] is alone["shuffled"] is None
    assert summary(random(3, 20, 8), random(3, 20, 8))["mean"] is None
    assert summary(torch.zeros(5, 40, 8), random(5, 40, 8))["mean"] is None


@pytest.mark.parametrize("name", MEASURED)
def test_every_family_is_compared_with_what_its_tokens_were_made_of(name):
    model, inputs = tiny(MEASURED[name])
    parts = model_parts(model)
    with torch.no_grad(), measuring(model, parts, images=30) as measurement:
        for seed in range(30):
            pixels = {key: random(*v.shape, seed=seed) for key, v in inputs.items() if v.is_floating_point()}
            model(**inputs | pixels, use_cache=False)
    measured, sample = measurement.sample.summary(), measurement.sample
    if name in MIXED:
        assert measured["reference"] == LAYER_0 and measured["mean"][0] == 1
        return
    assert measured["reference"] == FEATURES and 0 < measured["mean"][0] < 1
    with torch.no_grad():
        made = parts.connector(sample.features[0].reshape(SHAPES.get(name, (-1, sample.features[0].shape[1]))))
    tokens = sample.states[0][0]
    cosines = torch.cosine_similarity(made.reshape(tokens.shape), tokens, dim=-1)  # Granite's are multiples
    torch.testing.assert_close(cosines, torch.ones(len(cosines)))


def test_a_connector_that_mixes_its_rows_has_no_features():
    rows, mixing = torch.nn.Linear(4, 6), torch.nn.MultiheadAttention(4, 1, batch_first=True)
    states = random(1, 9, 4)
    made, features = ByRows()(rows, (states,), {}, rows(states))
    assert torch.equal(features, states[0]) and torch.equal(made, rows(states)[0])
    assert ByRows()(mixing, (states, states, states), {}, mixing(states, states, states)) is None
