"""Questions on a scene with their right answers, wrong ones of the same kind, and the cells that show the answer."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from tinyworld.layouts import Items
from tinyworld.scenes import COLOURS, POSITIONS, SHAPES, SIZES, Item


@dataclass(frozen=True)
class Question:
    """`wrong` are plausible other answers, none is `answer`; `cells` show the answer (none for what is absent)."""

    family: str
    text: str
    answer: str
    wrong: tuple[str, ...]
    cells: tuple[int, ...]


Family = Callable[[Items, random.Random], list[Question]]


def phrase(item: Item | None, with_size: bool = False) -> str:
    """How the language names an item: "red circle", "letter C", "digit 7", "nothing"."""
    if item is None:
        return "nothing"
    if item.kind == "shape":
        return f"{item.size} {item.colour} {item.name}" if with_size else f"{item.colour} {item.name}"
    return f"{item.kind} {item.name}"


def _others(answer: str, values: list[str] | tuple[str, ...], rng: random.Random, count: int = 4) -> tuple[str, ...]:
    pool = sorted(set(values) - {answer})
    return tuple(rng.sample(pool, min(count, len(pool))))


def _phrases(items: Items, answer: str, rng: random.Random) -> tuple[str, ...]:
    """Wrong answers where a thing is asked for: first what else the scene shows, then things it does not."""
    seen = sorted({phrase(item) for item in items} - {answer})
    rng.shuffle(seen)
    made = [f"{rng.choice(list(COLOURS))} {rng.choice(SHAPES)}" for _ in range(8)]
    return tuple(dict.fromkeys(p for p in seen[:2] + made if p != answer))[:4]


def _shapes(items: Items) -> list[tuple[int, Item]]:
    return [(cell, item) for cell, item in enumerate(items) if item is not None and item.kind == "shape"]


def _unique(items: Items, attribute: str) -> list[tuple[int, Item]]:
    """The shapes whose name (or colour) no other item of the scene has."""
    counts = Counter(
        getattr(item, attribute)
        for item in items
        if item is not None and (item.kind == "shape" or attribute == "colour")
    )
    return [(cell, item) for cell, item in _shapes(items) if counts[getattr(item, attribute)] == 1]


def colour(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question(
            "colour",
            f"What colour is the {item.name}?",
            item.colour,
            _others(item.colour, list(COLOURS), rng),
            (cell,),
        )
        for cell, item in _unique(items, "name")
    ]


def shape(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question("shape", f"What shape is {item.colour}?", item.name, _others(item.name, SHAPES, rng), (cell,))
        for cell, item in _unique(items, "colour")
    ]


def size(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question("size", f"What size is the {item.name}?", item.size, _others(item.size, SIZES, rng), (cell,))
        for cell, item in _unique(items, "name")
    ]


def at(items: Items, rng: random.Random) -> list[Question]:
    filled = [cell for cell in range(9) if items[cell] is not None]
    empty = [cell for cell in range(9) if items[cell] is None]
    cells = filled + rng.sample(empty, min(1, len(empty)))
    return [
        Question(
            "at",
            f"What is in the {POSITIONS[cell]}?",
            answer := phrase(items[cell]),
            _phrases(items, answer, rng),
            (cell,),
        )
        for cell in cells
    ]


def where(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question(
            "where",
            f"Where is the {phrase(item)}?",
            POSITIONS[cell],
            _others(POSITIONS[cell], POSITIONS, rng),
            (cell,),
        )
        for cell, item in enumerate(items)
        if item is not None and sum(phrase(other) == phrase(item) for other in items) == 1
    ]


def descriptions(item: Item) -> list[str]:
    """All ways to name a shape that a question of existence may use, from the barest to the fullest."""
    return [
        item.name,
        f"{item.colour} {item.name}",
        f"{item.size} {item.name}",
        f"{item.size} {item.colour} {item.name}",
    ]


def exists(items: Items, rng: random.Random) -> list[Question]:
    """Half the questions name what is there, half what is not; the latter share an attribute with what is there."""
    shown = {text: cell for cell, item in _shapes(items) for text in descriptions(item)}
    if not shown:
        return []
    present = rng.sample(sorted(shown), min(3, len(shown)))
    absent = absent_descriptions(items, rng, len(present))
    return [
        Question("exists", f"Is there a {text} in the image?", "yes", ("no",), (shown[text],)) for text in present
    ] + [Question("exists", f"Is there a {text} in the image?", "no", ("yes",), ()) for text in absent]


def absent_descriptions(items: Items, rng: random.Random, count: int) -> list[str]:
    """Descriptions of shapes that the scene does not show, made by changing one attribute of a shape that it does."""
    shapes = [item for _, item in _shapes(items)]
    shown = {text for item in shapes for text in descriptions(item)}
    found: list[str] = []
    while len(found) < count:
        item = rng.choice(shapes)
        change = rng.choice(("name", "colour", "size"))
        values = {"name": SHAPES, "colour": tuple(COLOURS), "size": SIZES}[change]
        other = Item(
            "shape",
            **{k: getattr(item, k) for k in ("name", "colour", "size") if k != change},
            **{change: rng.choice(values)},
        )
        text = rng.choice(descriptions(other))
        if text not in shown and text not in found:
            found.append(text)
    return found


def count(items: Items, rng: random.Random) -> list[Question]:
    shapes = _shapes(items)
    if not shapes:
        return []
    numbers = [str(n) for n in range(7)]
    total = str(len(shapes))
    asked = [
        Question(
            "count", "How many shapes are there?", total, _others(total, numbers, rng), tuple(c for c, _ in shapes)
        )
    ]
    for attribute, noun in (("colour", "shapes"), ("size", "shapes")):
        value = getattr(rng.choice(shapes)[1], attribute)
        cells = tuple(cell for cell, item in shapes if getattr(item, attribute) == value)
        answer = str(len(cells))
        asked.append(
            Question("count", f"How many {value} {noun} are there?", answer, _others(answer, numbers, rng), cells)
        )
    return asked


DIRECTIONS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}


def relation(items: Items, rng: random.Random) -> list[Question]:
    asked = []
    for cell, item in _unique(items, "name"):
        for direction, (down, right) in DIRECTIONS.items():
            row, column = cell // 3 + down, cell % 3 + right
            if 0 <= row < 3 and 0 <= column < 3 and (neighbour := items[row * 3 + column]) is not None:
                answer = phrase(neighbour)
                text = f"What is {direction} the {item.name}?"
                asked.append(Question("relation", text, answer, _phrases(items, answer, rng), (row * 3 + column,)))
    return asked


def _characters(items: Items, kinds: tuple[str, ...]) -> tuple[str, tuple[int, ...]]:
    cells = tuple(cell for cell, item in enumerate(items) if item is not None and item.kind in kinds)
    return "".join(items[cell].name for cell in cells if items[cell] is not None), cells  # type: ignore[union-attr]


def _misreadings(text: str, rng: random.Random) -> tuple[str, ...]:
    """Readings of the same length that differ in one or two characters of the same kind."""
    found: list[str] = []
    while len(found) < 4:
        characters = list(text)
        for i in rng.sample(range(len(text)), min(len(text), rng.choice((1, 2)))):
            alphabet = "0123456789" if text[i].isdigit() else "+-" if text[i] in "+-" else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
            characters[i] = rng.choice(alphabet)
        other = "".join(characters)
        if other != text and other not in found:
            found.append(other)
    return tuple(found)


def read(items: Items, rng: random.Random) -> list[Question]:
    """Reading a line: a word, a number or an expression, where the scene has exactly one such line."""
    filled = {cell // 3 for cell, item in enumerate(items) if item is not None and item.kind != "shape"}
    if len(filled) != 1:
        return []
    kinds = {item.kind for item in items if item is not None} - {"shape"}
    text, cells = _characters(items, ("letter", "digit", "operator"))
    if len(text) < 2:
        return []
    if kinds == {"letter"}:
        asked = (
            "What is written in the image?"
            if all(i is None or i.kind == "letter" for i in items)
            else "What word is in the image?"
        )
    elif kinds == {"digit"}:
        asked = "What is the number in the image?"
    elif "operator" in kinds:
        asked = "Write the expression in the image."
    else:
        return []
    return [Question("read", asked, text, _misreadings(text, rng), cells)]


def field(items: Items, rng: random.Random) -> list[Question]:
    """The value beside a key, where every line is a key and two digits."""
    rows = [items[row * 3 : row * 3 + 3] for row in range(3)]
    if not all(
        row[0] and row[1] and row[2] and row[0].kind != "digit" and row[1].kind == row[2].kind == "digit"
        for row in rows
    ):
        return []
    asked = []
    values = [row[1].name + row[2].name for row in rows]  # type: ignore[union-attr]
    for index, row in enumerate(rows):
        key = row[0]
        assert key is not None
        name = key.name if key.kind == "letter" else f"the {key.name}"
        wrong = tuple(
            dict.fromkeys([v for v in values if v != values[index]] + list(_misreadings(values[index], rng)))
        )[:4]
        asked.append(
            Question("field", f"What is the value of {name}?", values[index], wrong, (index * 3 + 1, index * 3 + 2))
        )
    return asked


FAMILIES: dict[str, Family] = {
    "colour": colour,
    "shape": shape,
    "size": size,
    "at": at,
    "where": where,
    "exists": exists,
    "count": count,
    "relation": relation,
    "read": read,
    "field": field,
}


def ask(items: Items, rng: random.Random, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Question]:
    """All questions of the named families that this scene can be asked, in random order."""
    asked = [question for name in families for question in FAMILIES[name](items, rng)]
    rng.shuffle(asked)
    return asked
