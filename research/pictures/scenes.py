"""Scenes with pictures: cells of 64 pixels, with the emoji of a noun or with what tinyworld's scenes have."""

import random

from PIL import Image

from research.pictures.sheet import SIDE, picture_of
from tinyworld import scenes
from tinyworld.layouts import Items
from tinyworld.scenes import Item, Scene, mask_of


CANVAS = 3 * SIDE
SMALLEST = 40  # pixels that a picture is wide or high, at least; at most it fills its cell


def _drawn(item: Item, rng: random.Random, split: str) -> Image.Image:
    """The item's picture, in a random size; a mask of tinyworld at twice its size."""
    if item.kind != "picture":
        mask = mask_of(item, rng, split)
        return mask.resize((2 * mask.width, 2 * mask.height), Image.Resampling.BICUBIC)
    picture = picture_of(item.name)
    scale = rng.randint(SMALLEST, SIDE - 2) / max(picture.size)
    width, height = (max(1, round(scale * side)) for side in picture.size)
    return picture.resize((width, height), Image.Resampling.BICUBIC)


def render(items: Items, rng: random.Random, split: str) -> Scene:
    """Draw nine cells as `tinyworld.scenes.render` does."""
    return scenes.render(items, rng, split, SIDE, _drawn)
