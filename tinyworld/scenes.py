"""Scenes: nine cells on a square canvas, empty or with a coloured shape, a letter, a handwritten digit, an operator.

Every item has its box in pixels, which shows where an answer can be seen. The digits are real handwriting, 8 x 8
images from scikit-learn's `load_digits`; the last 360 (by other writers) are reserved for testing.
"""

import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from sklearn.datasets import load_digits


CANVAS = 96
CELL = 32
COLOURS = {
    "red": (220, 30, 30),
    "green": (20, 150, 40),
    "blue": (40, 70, 230),
    "yellow": (240, 210, 20),
    "purple": (140, 40, 170),
    "orange": (245, 130, 20),
    "black": (20, 20, 20),
}
SHAPES = ("circle", "square", "triangle", "diamond", "cross", "star", "ring", "heart")
SIZES = ("small", "big")
DIGITS = "0123456789"
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
POSITIONS = ("northwest", "north", "northeast", "west", "center", "east", "southwest", "south", "southeast")
FIRST_TEST_DIGIT = 1437


@dataclass(frozen=True)
class Item:
    """The content of one cell. `kind` is shape, letter, digit, operator or picture; `name` is "circle", "C", "7", "+"
    or "owl"."""

    kind: str
    name: str
    colour: str = "black"
    size: str = "big"
    style: str = "regular"  # of letters: regular, irregular (turned), artistic (outlined), handwritten (slanted)


@dataclass(frozen=True)
class Scene:
    """`items[row * 3 + column]`, None if empty; their `boxes` (left, top, right, bottom) in pixels; the image."""

    items: tuple[Item | None, ...]
    boxes: tuple[tuple[int, int, int, int] | None, ...]
    image: Image.Image


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray]:
    bunch = load_digits()
    return bunch.images.astype(np.uint8), bunch.target


@functools.cache
def _digit_indices(name: str, split: str) -> np.ndarray:
    indices = np.flatnonzero(_digits()[1] == int(name))
    return indices[indices >= FIRST_TEST_DIGIT] if split == "test" else indices[indices < FIRST_TEST_DIGIT]


@functools.cache
def _letter(name: str, style: str, size: int) -> Image.Image:
    """The letter as a mask (mode L), cropped to its ink."""
    image = Image.new("L", (3 * size, 3 * size))
    draw = ImageDraw.Draw(image)
    artistic: dict[str, Any] = {"fill": 0, "stroke_width": 1, "stroke_fill": 255}
    stroke = artistic if style == "artistic" else {"fill": 255}
    draw.text((size, size), name, font=ImageFont.load_default(size), **stroke)
    return image.crop(image.getbbox())


def _shape(name: str, pixels: int) -> Image.Image:
    """The shape as a mask (mode L), drawn at four times its size and reduced for smooth edges."""
    side = 4 * pixels
    image = Image.new("L", (side, side))
    draw = ImageDraw.Draw(image)
    last = side - 1
    if name == "circle":
        draw.ellipse((0, 0, last, last), fill=255)
    elif name == "ring":
        draw.ellipse((0, 0, last, last), outline=255, width=side // 5)
    elif name == "square":
        draw.rectangle((side // 12, side // 12, last - side // 12, last - side // 12), fill=255)
    elif name == "triangle":
        draw.polygon([(side // 2, 0), (last, last), (0, last)], fill=255)
    elif name == "diamond":
        draw.polygon([(side // 2, 0), (last, side // 2), (side // 2, last), (0, side // 2)], fill=255)
    elif name == "cross":
        third = side // 3
        draw.rectangle((third, 0, last - third, last), fill=255)
        draw.rectangle((0, third, last, last - third), fill=255)
    elif name == "star":
        radii = (side / 2, side / 5)
        points = [
            (radii[i % 2] * math.sin(i * math.pi / 5), -radii[i % 2] * math.cos(i * math.pi / 5)) for i in range(10)
        ]
        draw.polygon([(side / 2 + x, side / 2 + y) for x, y in points], fill=255)
    else:  # a heart
        half = side // 2
        draw.pieslice((0, 0, half, half), 180, 360, fill=255)
        draw.pieslice((half, 0, last, half), 180, 360, fill=255)
        draw.polygon([(0, half // 2), (last, half // 2), (half, last)], fill=255)
    return image.resize((pixels, pixels), Image.Resampling.BOX)


def mask_of(item: Item, rng: random.Random, split: str) -> Image.Image:
    """The item's ink as a mask no larger than a cell."""
    if item.kind == "shape":
        return _shape(item.name, rng.randint(25, 29) if item.size == "big" else rng.randint(13, 16))
    if item.kind == "digit":
        images, _ = _digits()
        image = Image.fromarray(images[rng.choice(_digit_indices(item.name, split))] * 15)
        return image.resize((rng.randint(25, 28),) * 2, Image.Resampling.BILINEAR)
    if item.kind == "operator":
        side = rng.randint(15, 19)
        image = Image.new("L", (side, side))
        draw = ImageDraw.Draw(image)
        tilt = rng.randint(-2, 2)
        draw.line((0, side // 2 + tilt, side - 1, side // 2 - tilt), fill=230, width=3)
        if item.name == "+":
            draw.line((side // 2 + tilt, 0, side // 2 - tilt, side - 1), fill=230, width=3)
        return image
    mask = _letter(item.name, item.style, rng.randint(25, 28))
    if item.style == "irregular":
        mask = mask.rotate(rng.choice((-1, 1)) * rng.randint(10, 25), Image.Resampling.BILINEAR, expand=True)
    elif item.style == "handwritten":
        slant = rng.uniform(0.15, 0.35)
        width = mask.width + int(slant * mask.height)
        shear = (1, slant, -slant * mask.height, 0, 1, 0)
        mask = mask.transform((width, mask.height), Image.Transform.AFFINE, shear, Image.Resampling.BILINEAR)
    mask = mask.crop(mask.getbbox())
    mask.thumbnail((CELL - 2, CELL - 2))
    return mask


def render(
    items: tuple[Item | None, ...],
    rng: random.Random,
    split: str,
    side: int = CELL,
    drawn: Callable[[Item, random.Random, str], Image.Image] = mask_of,
) -> Scene:
    """Draw nine cells; place, shade and handwriting vary with `rng`.

    Args:
        split: "train" or "test", picks the digits.
        side: of a cell, in pixels.
        drawn: what an item looks like: a mask (mode L), inked in the item's colour, or a picture (RGBA).
    """
    background = tuple(rng.randint(205, 250) for _ in range(3))
    image = Image.new("RGB", (3 * side, 3 * side), background)
    boxes: list[tuple[int, int, int, int] | None] = []
    for cell, item in enumerate(items):
        if item is None:
            boxes.append(None)
            continue
        ink = drawn(item, rng, split)
        left = cell % 3 * side + rng.randint(0, side - ink.width)
        top = cell // 3 * side + rng.randint(0, side - ink.height)
        if ink.mode == "RGBA":
            image.paste(ink, (left, top), ink)
        else:
            shade = tuple(min(255, max(0, channel + rng.randint(-20, 20))) for channel in COLOURS[item.colour])
            image.paste(Image.new("RGB", ink.size, shade), (left, top), ink)
        boxes.append((left, top, left + ink.width, top + ink.height))
    noise = np.random.default_rng(rng.getrandbits(32)).normal(0, 4, (3 * side, 3 * side, 3))
    pixels = np.clip(np.asarray(image, dtype=np.float32) + noise, 0, 255).astype(np.uint8)
    return Scene(items, tuple(boxes), Image.fromarray(pixels))
