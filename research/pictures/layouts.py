"""Layouts with pictures: one thing, scenes of two to six, and tinyworld's texts, signs and forms among them."""

import random
from collections.abc import Callable

from research.pictures.nouns import KIND, KINDS, NOUNS, draw_nouns
from tinyworld import layouts as plain
from tinyworld.layouts import Items
from tinyworld.scenes import Item


def _picture(noun: str) -> Item:
    return Item("picture", noun)


def _some_nouns(rng: random.Random, count: int) -> list[str]:
    """Different nouns; half the time several of one kind, so that they can be counted and told apart."""
    if rng.random() < 0.5:
        return draw_nouns(rng, count)
    (first,) = draw_nouns(rng, 1, KIND)
    alike = draw_nouns(rng, rng.randint(1, count), KINDS[KIND[first]])
    others = draw_nouns(rng, count - len(alike), [noun for noun in NOUNS if noun not in KINDS[KIND[first]]])
    return [*alike, *others]


def _placed(found: list[Item], rng: random.Random) -> Items:
    """The items in any cells."""
    cells = dict(zip(rng.sample(range(9), len(found)), found, strict=True))
    return tuple(cells.get(cell) for cell in range(9))


def thing(rng: random.Random) -> Items:
    """One picture, shape, letter or digit: easy, since there is nothing else that a name could belong to."""
    if rng.random() < 0.7:
        return _placed([_picture(noun) for noun in draw_nouns(rng, 1)], rng)
    others = rng.choice((plain.objects, plain.letters, plain.number))(rng)
    return _placed([rng.choice([item for item in others if item is not None])], rng)


def things(rng: random.Random, count: int | None = None) -> Items:
    """Two to six things in any cells: pictures, sometimes a shape, a letter or a digit among them."""
    total = count or rng.randint(2, 6)
    found = [_picture(noun) for noun in _some_nouns(rng, total)]
    if count is None and rng.random() < 0.3:
        others = [item for item in plain.objects(rng) if item is not None]
        found[-1] = rng.choice(others)
    return _placed(found, rng)


def _with_pictures(items: Items, rng: random.Random) -> Items:
    """Replace the shapes by pictures."""
    nouns = iter(draw_nouns(rng, len(items)))
    return tuple(_picture(next(nouns)) if item and item.kind == "shape" else item for item in items)


def sign(rng: random.Random) -> Items:
    """A word in one row, pictures in the others."""
    return _with_pictures(plain.sign(rng), rng)


def form(rng: random.Random, icons: bool | None = None) -> Items:
    """Three lines of a key and a two-digit value; keys are pictures (a price list) or letters (a document)."""
    return _with_pictures(plain.form(rng, icons), rng)


LAYOUTS: dict[str, Callable[..., Items]] = {
    "thing": thing,
    "objects": things,
    "letters": plain.letters,
    "number": plain.number,
    "expression": plain.expression,
    "sign": sign,
    "form": form,
}
MIXTURE = {"thing": 2, "objects": 12, "letters": 2, "number": 1, "expression": 1, "sign": 2, "form": 2}


def draw(rng: random.Random) -> Items:
    """A layout from the mixture of all training data."""
    return plain.draw(rng, LAYOUTS, MIXTURE)
