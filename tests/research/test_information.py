"""Probes of what the cells of a scene hold, and what is measured of a checkpoint beside them."""

import torch

from research.information import cells_of, make_scenes, probe


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
