"""Questions about scenes with pictures. Many need the picture and knowledge: which thing in the image can fly?

Some kinds of things, some knowledge and some combinations of both are held out of training; the family of a question
about them says so: "knowledge, new combination".
"""

import random
import zlib

from research.pictures.nouns import (
    HELD_OUT_KINDS,
    HELD_OUT_KNOWLEDGE,
    KIND,
    KINDS,
    KNOWLEDGE,
    NOUNS,
    Knowledge,
    draw_kinds,
    draw_nouns,
    is_or_are,
    plural,
    with_article,
)
from tinyworld import questions as plain
from tinyworld.layouts import Items
from tinyworld.questions import Family, Question
from tinyworld.scenes import POSITIONS, Item


NEW_COMBINATION, NEW_KIND, NEW_KNOWLEDGE = "new combination", "new kind", "new knowledge"
HELD_OUT_SHARE = 5  # one in this many pairs of knowledge and noun is held out
COUNTS = range(1, 5)
LONE_SHARE = 0.15  # of the kinds with one thing in a scene, how many are counted: about as many as those with two
NEIGHBOURS = {"left of": (0, -1), "right of": (0, 1), "above": (-1, 0), "below": (1, 0)}


def pictures(items: Items) -> list[tuple[int, str]]:
    """Cells with a picture, and their nouns."""
    return [(cell, item.name) for cell, item in enumerate(items) if item is not None and item.kind == "picture"]


def is_new_combination(knowledge: str, noun: str) -> bool:
    return zlib.crc32(f"{knowledge}/{noun}".encode()) % HELD_OUT_SHARE == 0


def _family(name: str, noun: str, known: Knowledge | None = None) -> str:
    """The family of a question about a noun, with what in it is held out of training, if anything."""
    if known is not None and known.name in HELD_OUT_KNOWLEDGE:
        return f"{name}, {NEW_KNOWLEDGE}"
    if KIND.get(noun) in HELD_OUT_KINDS:
        return f"{name}, {NEW_KIND}"
    if known is not None and is_new_combination(known.name, noun):
        return f"{name}, {NEW_COMBINATION}"
    return name


def _other_nouns(noun: str, items: Items, rng: random.Random, named: str = "") -> tuple[str, ...]:
    """Three wrong nouns: up to two others of the scene, but not `named` by the question, and absent ones.

    One absent noun is of the same kind as one of the others or as the answer, so that kinds do not tell which it is.
    """
    shown = [other for _, other in pictures(items)]
    others = [other for other in shown if other not in (noun, named)]
    found = rng.sample(others, min(2, len(others)))
    alike = KINDS.get(KIND.get(rng.choice([noun, *found]), ""), NOUNS)
    found += draw_nouns(rng, 1, [other for other in alike if other not in shown])
    rest = [other for other in NOUNS if other not in (*shown, *found)]
    return (*found, *draw_nouns(rng, 3 - len(found), rest))


def name(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question(
            _family("name", noun),
            f"What is in the {POSITIONS[cell]}?",
            noun,
            _other_nouns(noun, items, rng),
            (cell,),
            f"There {is_or_are(noun)} {with_article(noun)} in the {POSITIONS[cell]}.",
        )
        for cell, noun in pictures(items)
    ]


def where(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question(
            _family("where", noun),
            f"Where {is_or_are(noun)} the {noun}?",
            POSITIONS[cell],
            tuple(rng.sample([other for other in POSITIONS if other != POSITIONS[cell]], 3)),
            (cell,),
            f"The {noun} {is_or_are(noun)} in the {POSITIONS[cell]}.",
        )
        for cell, noun in pictures(items)
    ]


def _without_article(text: str) -> str:
    return text.split(" ", 1)[1] if text.startswith(("a ", "an ")) else text


def exists_text(text: str) -> str:
    """The question whether a description of `descriptions` is in the image."""
    return f"{is_or_are(_without_article(text)).capitalize()} there {text} in the image?"


def descriptions(item: Item) -> list[str]:
    """What a picture can be called in questions of existence: its noun, its kind."""
    kind = KIND.get(item.name)
    return [with_article(item.name), *([with_article(kind)] if kind else [])]


def absent_descriptions(items: Items, rng: random.Random, count: int) -> list[str]:
    """Descriptions of absent things: kinds as often as `descriptions` has them, nouns half of a kind that is there."""
    shown = {text for cell, _ in pictures(items) if (item := items[cell]) for text in descriptions(item)}
    kinds = sorted({KIND[noun] for _, noun in pictures(items) if noun in KIND})
    found: list[str] = []
    while len(found) < count:
        draw = rng.random()
        if draw < 0.3 and kinds:
            (text,) = map(with_article, draw_nouns(rng, 1, KINDS[rng.choice(kinds)]))
        elif draw < 0.6:
            (text,) = map(with_article, draw_nouns(rng, 1))
        else:
            (text,) = map(with_article, draw_kinds(rng, 1))
        if text not in shown and text not in found:
            found.append(text)
    return found


def exists(items: Items, rng: random.Random) -> list[Question]:
    """As many questions about things of the scene as about absent ones."""
    shown = pictures(items)
    if not shown:
        return []
    asked = []
    for cell, noun in rng.sample(shown, min(2, len(shown))):
        item = items[cell]
        assert item is not None
        text = rng.choice(descriptions(item))
        there = f"Yes, there {is_or_are(noun)} {with_article(noun)} in the {POSITIONS[cell]}."
        asked.append(Question(_family("exists", noun), exists_text(text), "yes", ("no",), (cell,), there))
    for text in absent_descriptions(items, rng, len(asked)):
        noun = _without_article(text)
        new = noun in HELD_OUT_KINDS or KIND.get(noun) in HELD_OUT_KINDS
        family = f"exists, {NEW_KIND}" if new else "exists"
        asked.append(
            Question(
                family, exists_text(text), "no", ("yes",), (), f"No, there {is_or_are(noun)} no {noun} in the image."
            )
        )
    return asked


def kind(items: Items, rng: random.Random) -> list[Question]:
    return [
        Question(
            _family("kind", noun),
            f"What kind of thing is in the {POSITIONS[cell]}?",
            KIND[noun],
            tuple(draw_kinds(rng, 3, [other for other in KINDS if other != KIND[noun]])),
            (cell,),
            f"There {is_or_are(noun)} {with_article(noun)} in the {POSITIONS[cell]}: {with_article(KIND[noun])}.",
        )
        for cell, noun in pictures(items)
        if noun in KIND
    ]


def count(items: Items, rng: random.Random) -> list[Question]:
    """How many things of a kind there are. Most kinds with one thing are skipped, or 1 would be the best guess."""
    cells: dict[str, list[int]] = {}
    for cell, noun in pictures(items):
        if noun in KIND:
            cells.setdefault(KIND[noun], []).append(cell)
    asked = []
    for each, found in cells.items():
        number = len(found)
        if (number == 1 and rng.random() > LONE_SHARE) or number > max(COUNTS):
            continue
        family = f"count, {NEW_KIND}" if each in HELD_OUT_KINDS else "count"
        wrong = rng.sample([other for other in COUNTS if other != number], 3)
        told = f"There is one {each}." if number == 1 else f"There are {number} {plural(each)}."
        text = f"How many {plural(each)} are in the image?"
        asked.append(Question(family, text, str(number), tuple(map(str, wrong)), tuple(found), told))
    return asked


def knowledge(items: Items, rng: random.Random) -> list[Question]:
    """Which thing of the scene has a property, if it is one alone and clear for all."""
    shown = pictures(items)
    asked = []
    for known in KNOWLEDGE.values():
        having = [(cell, noun) for cell, noun in shown if noun in known.true_of]
        if len(having) != 1 or len(shown) < 2 or len(shown) - 1 != sum(noun in known.false_of for _, noun in shown):
            continue
        ((cell, noun),) = having
        lacking = [other for _, other in shown if other != noun]
        absent = [other for other in known.true_of if other != noun]
        wrong = [*draw_nouns(rng, 2, absent), rng.choice(lacking)]  # more than one can fly, and more than one is there
        rest = [other for other in NOUNS if other in known.false_of and other not in wrong]
        asked.append(
            Question(
                _family("knowledge", noun, known),
                f"Which thing in the image {known.which}?",
                noun,
                (*wrong, *draw_nouns(rng, 3 - len(wrong), rest)),
                (cell,),
                f"{known.say.format(the=f'the {noun}', The=f'The {noun}')}; it is in the {POSITIONS[cell]}.",
            )
        )
    return asked


def about(items: Items, rng: random.Random) -> list[Question]:
    """Whether the thing in a cell has a property that one thing of the scene has and another lacks: one of each."""
    shown = pictures(items)
    asked = []
    for known in KNOWLEDGE.values():
        having = [(cell, noun) for cell, noun in shown if noun in known.true_of]
        lacking = [(cell, noun) for cell, noun in shown if noun in known.false_of]
        if not having or not lacking:
            continue
        for answer, other, found in (("yes", "no", having), ("no", "yes", lacking)):
            cell, noun = rng.choice(found)
            text = known.ask.format(the=f"the thing in the {POSITIONS[cell]}")
            there = f"{answer.capitalize()}, there {is_or_are(noun)} {with_article(noun)} in the {POSITIONS[cell]}."
            asked.append(
                Question(
                    _family("about", noun, known), f"{text[0].upper()}{text[1:]}?", answer, (other,), (cell,), there
                )
            )
    return asked


def beside(items: Items, rng: random.Random) -> list[Question]:
    """What is in the cell next to a picture."""
    shown = dict(pictures(items))
    asked = []
    for cell, noun in shown.items():
        for words, (down, right) in NEIGHBOURS.items():
            row, column = cell // 3 + down, cell % 3 + right
            if not (0 <= row < 3 and 0 <= column < 3) or (other := shown.get(row * 3 + column)) is None:
                continue
            family = f"beside, {NEW_KIND}" if KIND.get(noun) in HELD_OUT_KINDS else _family("beside", other)
            told = f"There {is_or_are(other)} {with_article(other)} {words} the {noun}."
            wrong = _other_nouns(other, items, rng, noun)
            asked.append(
                Question(family, f"What is directly {words} the {noun}?", other, wrong, (row * 3 + column,), told)
            )
    return asked


PICTURE_FAMILIES: dict[str, Family] = {
    "name": name,
    "where": where,
    "exists": exists,
    "kind": kind,
    "count": count,
    "knowledge": knowledge,
    "about": about,
    "beside": beside,
    "at": plain.at,
    "read": plain.read,
    "field": plain.field,
}
FAMILIES = tuple(PICTURE_FAMILIES)  # those of training: nothing that is held out


def ask(items: Items, rng: random.Random, families: tuple[str, ...] = FAMILIES) -> list[Question]:
    """All questions of the named families about this scene, in random order."""
    bases = dict.fromkeys(family.split(", ")[0] for family in families)
    asked = [question for base in bases for question in PICTURE_FAMILIES[base](items, rng)]
    kept = [question for question in asked if question.family in families]
    rng.shuffle(kept)
    return kept
