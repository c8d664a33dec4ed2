"""Layouts: what the nine cells of a scene contain, by purpose: objects, a word, a number, a sum, a form."""

import random
from collections.abc import Callable, Mapping

from tinyworld.scenes import COLOURS, LETTERS, SHAPES, SIZES, Item


Items = tuple[Item | None, ...]

WORDS = tuple(
    "CAT DOG SUN CAR BUS HAT PEN KEY BOX BAG MAP EGG ANT BEE COW FOX OWL PIG JAM NUT ICE SEA SKY TOP RED BIG ONE TWO "
    "SIX TEN ZOO VAN JET OIL FLY GYM HEN INK LOG MUD NET OAK PIE RAT TEA URN WEB YAK ZIP QUA".split()
)
LETTER_STYLES = ("regular", "irregular", "artistic", "handwritten")


def _shape(rng: random.Random) -> Item:
    return Item("shape", rng.choice(SHAPES), rng.choice(list(COLOURS)), rng.choice(SIZES))


def _letters(text: str, rng: random.Random, style: str) -> list[Item]:
    colour = rng.choice(list(COLOURS))
    return [Item("letter", letter, colour, style=style) for letter in text]


def _digits(text: str) -> list[Item]:
    return [Item("digit" if character.isdigit() else "operator", character) for character in text]


def _row(row: int, items: list[Item], start: int = 0) -> dict[int, Item]:
    return {row * 3 + start + i: item for i, item in enumerate(items)}


def _cells(filled: dict[int, Item]) -> Items:
    return tuple(filled.get(cell) for cell in range(9))


def objects(rng: random.Random, count: int | None = None) -> Items:
    """One to six different things in any cells: at least one shape, sometimes a letter or a digit."""
    things: list[Item] = []
    total = count or rng.randint(1, 6)
    while len(things) < total:
        draw = rng.random() if things and count is None else 0.0
        if draw < 0.8:
            item = _shape(rng)
        elif draw < 0.9:
            item = _letters(rng.choice(LETTERS), rng, rng.choice(LETTER_STYLES))[0]
        else:
            item = _digits(str(rng.randrange(10)))[0]
        if all((item.name, item.colour) != (other.name, other.colour) for other in things):
            things.append(item)
    return _cells(dict(zip(rng.sample(range(9), total), things, strict=True)))


def letters(rng: random.Random, style: str | None = None, known: bool | None = None) -> Items:
    """Three letters in a row and nothing else: a known word or any three."""
    is_word = rng.random() < 0.5 if known is None else known
    text = rng.choice(WORDS) if is_word else "".join(rng.choices(LETTERS, k=3))
    return _cells(_row(rng.randrange(3), _letters(text, rng, style or rng.choice(LETTER_STYLES))))


def number(rng: random.Random) -> Items:
    """Two or three handwritten digits in a row and nothing else."""
    length = rng.choice((2, 3))
    digits = _digits("".join(rng.choices("0123456789", k=length)))
    return _cells(_row(rng.randrange(3), digits, rng.randint(0, 3 - length)))


def expression(rng: random.Random) -> Items:
    """A handwritten digit, an operator, a digit."""
    text = f"{rng.randrange(10)}{rng.choice('+-')}{rng.randrange(10)}"
    return _cells(_row(rng.randrange(3), _digits(text)))


def sign(rng: random.Random) -> Items:
    """A word in one row, shapes in the others: text in a scene."""
    row = rng.randrange(3)
    filled = _row(row, _letters(rng.choice(WORDS), rng, rng.choice(LETTER_STYLES)))
    free = [cell for cell in range(9) if cell // 3 != row]
    names = rng.sample(SHAPES, 3)
    for cell, name in zip(rng.sample(free, 3), names, strict=True):
        filled[cell] = Item("shape", name, rng.choice(list(COLOURS)), rng.choice(SIZES))
    return _cells(filled)


def form(rng: random.Random, icons: bool | None = None) -> Items:
    """Three lines of a key and a two-digit value; keys are shapes (a receipt) or letters (a document)."""
    use_icons = rng.random() < 0.5 if icons is None else icons
    filled: dict[int, Item] = {}
    keys = rng.sample(SHAPES, 3) if use_icons else rng.sample(LETTERS, 3)
    for row, key in enumerate(keys):
        colour = rng.choice(list(COLOURS))
        item = Item("shape", key, colour, "big") if use_icons else Item("letter", key, colour)
        filled |= _row(row, [item, *_digits("".join(rng.choices("0123456789", k=2)))])
    return _cells(filled)


LAYOUTS: dict[str, Callable[[random.Random], Items]] = {
    "objects": objects,
    "letters": letters,
    "number": number,
    "expression": expression,
    "sign": sign,
    "form": form,
}
MIXTURE = {"objects": 8, "letters": 2, "number": 2, "expression": 1, "sign": 2, "form": 2}


def draw(
    rng: random.Random,
    layouts: Mapping[str, Callable[[random.Random], Items]] = LAYOUTS,
    mixture: Mapping[str, int] = MIXTURE,
) -> Items:
    """A layout from the mixture of all training data."""
    name = rng.choices(list(mixture), weights=list(mixture.values()))[0]
    return layouts[name](rng)
