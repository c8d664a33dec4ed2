"""Questions about a scene: right answers, wrong ones of the same kind, and the cells that show the answer."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tinyworld.distractors import distractors
from tinyworld.layouts import Items
from tinyworld.scenes import COLOURS, DIGITS, LETTERS, POSITIONS, SHAPES, SIZES, Item


@dataclass(frozen=True)
class Question:
    """`wrong` are the distractors of `answer`; `cells` show the answer (none if it is about something absent).

    `sentence` is the answer in a whole sentence, where the world has one.
    """

    family: str
    text: str
    answer: str
    wrong: tuple[str, ...]
    cells: tuple[int, ...]
    sentence: str = ""


CHARACTERS = ("letter", "digit", "operator")
Family = Callable[[Items, random.Random], list[Question]]


def _shapes(items: Items) -> list[tuple[int, Item]]:
    return [(cell, item) for cell, item in enumerate(items) if item is not None and item.kind == "shape"]


def _unique(items: Items, attribute: str) -> list[tuple[int, Item]]:
    """The shapes with a name (or colour) that no other item of the scene has."""
    counts = Counter(
        getattr(item, attribute)
        for item in items
        if item is not None and (item.kind == "shape" or attribute == "colour")
    )
    return [(cell, item) for cell, item in _shapes(items) if counts[getattr(item, attribute)] == 1]


def _about(family: str, text: str, unique: str, answer: Callable[[int, Item], str], values: Sequence[str]) -> Family:
    """A question about each shape that its name (or colour) alone tells from all other items."""

    def questions(items: Items, rng: random.Random) -> list[Question]:
        answers = [(cell, item, answer(cell, item)) for cell, item in _unique(items, unique)]
        return [
            Question(family, text.format(getattr(item, unique)), right, distractors(right, values), (cell,))
            for cell, item, right in answers
        ]

    return questions


colour = _about("colour", "What colour is the {}?", "name", lambda cell, item: item.colour, [*COLOURS])
shape = _about("shape", "What shape is {}?", "colour", lambda cell, item: item.name, SHAPES)
size = _about("size", "What size is the {}?", "name", lambda cell, item: item.size, SIZES)
where = _about("where", "Where is the {}?", "name", lambda cell, item: POSITIONS[cell], POSITIONS)


def at(items: Items, rng: random.Random) -> list[Question]:
    asked = []
    for cell, item in enumerate(items):
        if item is None or item.kind not in ("shape", "digit"):
            continue
        known: dict[str, tuple[str, Sequence[str]]] = {"digit": (item.name, DIGITS)}
        if item.kind == "shape":
            known = {"shape": (item.name, SHAPES), "colour": (item.colour, [*COLOURS])}
        for attribute, (answer, values) in known.items():
            text = f"What {attribute} is in the {POSITIONS[cell]}?"
            asked.append(Question("at", text, answer, distractors(answer, values), (cell,)))
    return asked


def descriptions(item: Item) -> list[str]:
    """All descriptions of a shape in questions of existence, from the shortest to the longest."""
    return [item.name, f"{item.colour} {item.name}", f"{item.size} {item.colour} {item.name}"]


def exists(items: Items, rng: random.Random) -> list[Question]:
    """Half the questions name a shape of the scene, half an absent one that differs in one attribute."""
    shown = {text: cell for cell, item in _shapes(items) for text in descriptions(item)}
    if not shown:
        return []
    present = rng.sample(sorted(shown), min(3, len(shown)))
    absent = absent_descriptions(items, rng, len(present))
    ask_for = "Is there a {} in the image?".format
    asked = [Question("exists", ask_for(text), "yes", ("no",), (shown[text],)) for text in present]
    return asked + [Question("exists", ask_for(text), "no", ("yes",), ()) for text in absent]


def absent_descriptions(items: Items, rng: random.Random, count: int) -> list[str]:
    """Descriptions of absent shapes, made by changing one attribute of a shape in the scene."""
    shapes = [item for _, item in _shapes(items)]
    shown = {text for item in shapes for text in descriptions(item)}
    absent: list[str] = []
    while len(absent) < count:
        item = rng.choice(shapes)
        change = rng.choice(("name", "colour", "size"))
        values = {"name": SHAPES, "colour": tuple(COLOURS), "size": SIZES}[change]
        text = rng.choice(descriptions(replace(item, **{change: rng.choice(values)})))
        if text not in shown and text not in absent:
            absent.append(text)
    return absent


def count(items: Items, rng: random.Random) -> list[Question]:
    shapes = _shapes(items)
    if not shapes:
        return []
    chosen = rng.choice(shapes)[1].colour
    asked = []
    for noun, kept in (("shapes", shapes), (f"{chosen} shapes", [s for s in shapes if s[1].colour == chosen])):
        answer = str(len(kept))
        cells = tuple(cell for cell, _ in kept)
        asked.append(Question("count", f"How many {noun} are there?", answer, distractors(answer, DIGITS), cells))
    return asked


def _misreadings(text: str, rng: random.Random) -> tuple[str, ...]:
    """Readings that differ from `text` in one letter or digit."""
    index = rng.choice([i for i, character in enumerate(text) if character.isalnum()])
    values = DIGITS if text[index].isdigit() else LETTERS
    return tuple(text[:index] + other + text[index + 1 :] for other in distractors(text[index], values))


def read(items: Items, rng: random.Random) -> list[Question]:
    """Read a line of text (a word, a number or an expression) if the scene has exactly one."""
    line = [(cell, item) for cell, item in enumerate(items) if item is not None and item.kind in CHARACTERS]
    if len({cell // 3 for cell, _ in line}) != 1 or len(line) < 2:
        return []
    kinds = {item.kind for _, item in line}
    text, cells = "".join(item.name for _, item in line), tuple(cell for cell, _ in line)
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
    """Read the value next to a key if every line is a key and two digits."""
    lines = [
        (key, tens, units)
        for key, tens, units in (items[:3], items[3:6], items[6:])
        if key and tens and units and key.kind != "digit" and tens.kind == units.kind == "digit"
    ]
    if len(lines) < 3:
        return []
    asked = []
    for row, (key, tens, units) in enumerate(lines):
        name, value = key.name if key.kind == "letter" else f"the {key.name}", tens.name + units.name
        cells = (row * 3 + 1, row * 3 + 2)
        asked.append(Question("field", f"What is the value of {name}?", value, _misreadings(value, rng), cells))
    return asked


FAMILIES: dict[str, Family] = {
    "colour": colour,
    "shape": shape,
    "size": size,
    "at": at,
    "where": where,
    "exists": exists,
    "count": count,
    "read": read,
    "field": field,
}


def ask(items: Items, rng: random.Random, families: tuple[str, ...] = tuple(FAMILIES)) -> list[Question]:
    """All questions of the named families about this scene, in random order."""
    asked = [question for name in families for question in FAMILIES[name](items, rng)]
    rng.shuffle(asked)
    return asked
