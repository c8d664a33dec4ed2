"""Attention laid over example pictures, arms side by side, with the box that is asked about (paper Appendix G)."""

from dataclasses import dataclass
from typing import Any

from eval.data.image_sample import Box, ImageQuestion
from eval.report.finished_run import TITLES
from eval.report.page.thumbnails import shade_map, thumbnail


MEAN = "mean"


@dataclass(frozen=True)
class Layer:
    """The map of one layer, or of the mean over layers, and the share of it that lies in the box."""

    name: str
    map: str
    inside: float | None


@dataclass(frozen=True)
class Overlay:
    """A picture, what was asked, its boxes (pixels) and by arm its layers."""

    benchmark: str
    question: str
    image: str
    size: tuple[int, int]
    boxes: tuple[Box, ...]
    area: float
    arms: dict[str, list[Layer]]


def overlays(sample: list[ImageQuestion], looks: dict[str, dict[str, Any]]) -> list[Overlay]:
    """Every picture that has a map of some arm, in the order of the first arm that has any.

    Raises:
        UserError: a picture cannot be read.
    """
    maps: dict[str, dict[str, dict[str, Any]]] = {}
    for arm, look in looks.items():
        for kept in look.get("attention", {}).get("pictures", ()):
            maps.setdefault(kept["id"], {})[arm] = kept
    by_id = {picture.id: picture for picture in sample}
    found = []
    for name, arms in maps.items():
        picture = by_id[name]
        image = picture.open()
        found.append(
            Overlay(
                TITLES[name.split("/")[0]],
                picture.question,
                thumbnail(image),
                image.size,
                picture.boxes,
                _area(picture.boxes, image.size),
                {arm: _layers(kept) for arm, kept in arms.items()},
            )
        )
    return found


def _area(boxes: tuple[Box, ...], size: tuple[int, int]) -> float:
    """Share of the picture that is inside; boxes of tinyworld do not overlap."""
    return sum((right - left) * (bottom - top) for left, top, right, bottom in boxes) / (size[0] * size[1])


def _layers(kept: dict[str, Any]) -> list[Layer]:
    maps, inside = kept["maps"], kept["inside"] or [None] * len(kept["maps"])
    mean = [[sum(cells) / len(maps) for cells in zip(*rows, strict=True)] for rows in zip(*maps, strict=True)]
    share = None if kept["inside"] is None else sum(inside) / len(inside)
    layers = [Layer(str(number), shade_map(each), inside[number]) for number, each in enumerate(maps)]
    return [Layer(MEAN, shade_map(mean), share), *layers]
