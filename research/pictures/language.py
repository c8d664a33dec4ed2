"""Captions of scenes with pictures, and turns about them: in sentences, in a word, with options."""

import random

from research.pictures import general_knowledge, layouts, options
from research.pictures.nouns import with_article
from research.pictures.questions import ask
from tinyworld import language as plain
from tinyworld.language import STYLES, lettered_turn, open_turn
from tinyworld.layouts import Items
from tinyworld.questions import Question
from tinyworld.scenes import Item


DESCRIBED_SHARE = 0.5
OPEN_FAMILIES = ("exists", "about", "read", "field")  # never asked with options


def told(item: Item) -> str:
    """An item in a caption: `an owl`, `a small red ring`, `the letter C`."""
    return with_article(item.name) if item.kind == "picture" else plain.told(item)


def caption(items: Items) -> str:
    """All items of the scene, cell by cell in reading order (stage 1)."""
    return plain.caption(items, told)


def turn(question: Question, rng: random.Random) -> tuple[str, str]:
    """One (user, assistant) turn about a scene."""
    style = rng.choice(("sentence", "short", *STYLES))
    if style in STYLES and question.family not in OPEN_FAMILIES:
        return lettered_turn(question, style, rng)
    if style == "sentence" and question.sentence:
        return question.text, question.sentence
    return open_turn(question)


def scene_turns(items: Items, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Up to `count` turns about one scene, spread over the families of questions, each in its own style.

    Half of the conversations end with a description; before the questions it would tell their answers.
    """
    turns = [turn(question, rng) for question in plain.spread(ask(items, rng), rng, count)]
    if turns and rng.random() < DESCRIBED_SHARE:
        turns.append((plain.DESCRIBE, caption(items)))
    return turns


def told_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Up to `count` turns about a scene told in words: its caption stands where the image would."""
    while True:
        items = layouts.draw(rng)
        turns = [turn(question, rng) for question in plain.spread(ask(items, rng), rng, count)]
        if turns:  # none, if everything in the scene is held out of training
            (question, answer), *others = turns
            return [(f"{caption(items)}\n{question}", answer), *others]


def easy_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Up to `count` turns about options or about a scene in words, half of each."""
    return rng.choice((options.name_turns, told_turns))(rng, count)


def text_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Up to `count` turns without an image: half about a scene in words, a quarter with options about things."""
    kinds = (told_turns, told_turns, options.turns, general_knowledge.text_turns)
    return rng.choice(kinds)(rng, count)
