"""Measures of visual information: 1 for the features themselves, near the least for the null, falling with noise."""

import pytest
import torch

from research.information import MEASURES, NEIGHBOURS, cells_of, make_scenes, probe


def features(tokens=200, width=24):
    return torch.randn(tokens, width, generator=torch.Generator().manual_seed(0), dtype=torch.double)


@pytest.mark.parametrize("name", MEASURES)
def test_features_share_all_with_themselves_and_nothing_with_others(name):
    truth = features()
    rotation, _ = torch.linalg.qr(features(24))
    assert MEASURES[name](5 * truth @ rotation, truth) == pytest.approx(1)
    others = torch.randn(200, 24, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    assert abs(MEASURES[name](others, truth)) < 3 * NEIGHBOURS / 200


@pytest.mark.parametrize("name", MEASURES)
def test_noise_lowers_a_measure(name):
    truth, noise = features(), torch.randn(200, 24, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    values = [MEASURES[name](truth + scale * noise, truth) for scale in (0, 0.3, 1, 3)]
    assert values == sorted(values, reverse=True) and values[-1] < 0.5 * values[0]


def test_a_probe_reads_what_the_tokens_of_a_cell_say():
    scenes = make_scenes(60)
    colours = sorted({item.colour for scene in scenes for item in scene.items if item})
    grid = torch.zeros(60, 6, 6, len(colours), dtype=torch.double)
    for number, scene in enumerate(scenes):
        for cell, item in enumerate(scene.items):
            if item is not None:
                grid[number, 2 * (cell // 3) + 1, 2 * (cell % 3), colours.index(item.colour)] = 1
    tokens = grid.reshape(60, 36, -1)
    assert cells_of(tokens).shape == (60, 9, 4 * len(colours))
    assert probe(tokens, scenes, "colour") == 1
    blind = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(0), dtype=torch.double)
    assert probe(blind, scenes, "colour") < 0.5
