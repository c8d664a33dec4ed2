"""Questions with lettered options and without an image: they teach how to answer with a letter.

SmolLM2-135M answers in words before it finds the letter of a word among options; with these, it soon does.
"""

import random

from research.pictures.nouns import (
    HELD_OUT_KINDS,
    HELD_OUT_KNOWLEDGE,
    KIND,
    KINDS,
    KNOWLEDGE,
    NOUNS,
    draw_nouns,
    is_or_are,
    with_article,
)
from research.pictures.questions import is_new_combination
from tinyworld.language import STYLES, Choice, choice_prompt


TRAINED = tuple(noun for noun in NOUNS if KIND.get(noun) not in HELD_OUT_KINDS)
HAVING = {
    name: having
    for name, known in KNOWLEDGE.items()
    if name not in HELD_OUT_KNOWLEDGE
    and (having := [noun for noun in TRAINED if noun in known.true_of and not is_new_combination(name, noun)])
}
Asked = tuple[str, str, list[str]]  # what follows "Which of these", the answer, wrong options


def _by_name(rng: random.Random) -> Asked:
    noun, *wrong = draw_nouns(rng, 4, TRAINED)
    return f"{is_or_are(noun)} {with_article(noun)}", noun, wrong


def _by_kind(rng: random.Random) -> Asked:
    kind = rng.choice([kind for kind in KINDS if kind not in HELD_OUT_KINDS])
    (noun,) = draw_nouns(rng, 1, KINDS[kind])
    others = [other for other in TRAINED if KIND.get(other, kind) != kind]
    return f"is {with_article(kind)}", noun, draw_nouns(rng, 3, others)


def _by_knowledge(rng: random.Random) -> Asked:
    name = rng.choice(sorted(HAVING))
    known = KNOWLEDGE[name]
    (noun,) = draw_nouns(rng, 1, HAVING[name])
    return known.which, noun, draw_nouns(rng, 3, [other for other in TRAINED if other in known.false_of])


def _turn(asked: Asked, rng: random.Random) -> tuple[str, str]:
    which, answer, wrong = asked
    choice = Choice.of(f"Which of these {which}?", answer, tuple(wrong), rng)
    return choice_prompt(choice, rng.choice(STYLES)), choice.letter


def name_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` turns whose answer is a word of the question: *Which of these is an owl?*"""
    return [_turn(_by_name(rng), rng) for _ in range(count)]


def turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` turns about names, kinds and knowledge, none of them held out of training."""
    return [_turn(rng.choice((_by_name, _by_kind, _by_knowledge))(rng), rng) for _ in range(count)]
