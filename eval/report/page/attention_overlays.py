"""Attention over example images, models side by side, with the box that the question is about (paper Appendix G)."""

from dataclasses import dataclass
from typing import Any

from eval.report.finished_run import TITLES
from eval.report.page.thumbnails import shade_map, thumbnail
from modeling_aligned_llava.diagnostics.images import Box, ImageQuestion


MEAN = "mean"


@dataclass(frozen=True)
class Layer:
    """The map of one layer, or of the mean over layers, and its share inside the box."""

    name: str
    map: str
    inside: float | None


@dataclass(frozen=True)
class Overlay:
    """An image, its benchmark or file, the question, its boxes (pixels), and the layers by model."""

    benchmark: str
    question: str
    image: str
    size: tuple[int, int]
    boxes: tuple[Box, ...]
    area: float
    models: dict[str, list[Layer]]


def overlays(sample: list[ImageQuestion], measured: dict[str, dict[str, Any]]) -> list[Overlay]:
    """Every image with a map from any model, in the order of the first such model.

    Raises:
        UserError: an image cannot be read.
    """
    maps: dict[str, dict[str, dict[str, Any]]] = {}
    for model, found in measured.items():
        for kept in found.get("attention", {}).get("pictures", ()):
            maps.setdefault(kept["id"], {})[model] = kept
    by_id = {asked.id: asked for asked in sample}
    drawn = []
    for name, models in maps.items():
        asked = by_id[name]
        image = asked.open()
        drawn.append(
            Overlay(
                TITLES.get(name.split("/")[0], name),
                asked.question,
                thumbnail(image),
                image.size,
                asked.boxes,
                _area(asked.boxes, image.size),
                {model: _layers(kept) for model, kept in models.items()},
            )
        )
    return drawn


def _area(boxes: tuple[Box, ...], size: tuple[int, int]) -> float:
    """Share of the image inside the boxes, which do not overlap in tinyworld."""
    return sum((right - left) * (bottom - top) for left, top, right, bottom in boxes) / (size[0] * size[1])


def _layers(kept: dict[str, Any]) -> list[Layer]:
    maps, inside = kept["maps"], kept["inside"] or [None] * len(kept["maps"])
    mean = [[sum(cells) / len(maps) for cells in zip(*rows, strict=True)] for rows in zip(*maps, strict=True)]
    share = None if kept["inside"] is None else sum(inside) / len(inside)
    layers = [Layer(str(number), shade_map(each), inside[number]) for number, each in enumerate(maps)]
    return [Layer(MEAN, shade_map(mean), share), *layers]
