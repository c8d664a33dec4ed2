"""Text that only tinyworld's decoder is pretrained on: scenes as lists of words, look-ups, exams and tales."""

import random

from tinyworld.distractors import distractors
from tinyworld.facts import ANIMALS, ATTRIBUTES, EXAM_FACTS, FACTS, STORY_FACTS, Fact
from tinyworld.language import Choice
from tinyworld.layouts import Items
from tinyworld.scenes import COLOURS, DIGITS, LETTERS, POSITIONS, SHAPES, SIZES


GRID = 6  # patches per side: the listing has one word for each of the 36 visual tokens
EMPTY = "."
LISTED_WORDS = (
    *(*SIZES, "letter", "digit", "operator"),
    *COLOURS,
    *(*SHAPES, *LETTERS, *DIGITS, "+", "-"),
    *POSITIONS,
    EMPTY,
)

OPTIONS = (
    *(SIZES, tuple(COLOURS), SHAPES, POSITIONS, DIGITS),
    *(attribute.values for attribute in ATTRIBUTES.values()),
)

EXAM_HEADER = "The following are multiple choice questions (with answers) about {subject}.\n\n"


def listing(items: Items) -> list[str]:
    """The scene as 36 words in reading order, four per cell, for a decoder that has no vision tower yet.

    Each word has a fixed corner of its cell: size (or kind) and colour at the top, name and position at the bottom.
    """
    words = [[EMPTY] * GRID for _ in range(GRID)]
    for cell, item in enumerate(items):
        row, column = cell // 3 * 2, cell % 3 * 2
        words[row + 1][column + 1] = POSITIONS[cell]
        if item is not None:
            words[row][column] = item.size if item.kind == "shape" else item.kind
            words[row][column + 1] = item.colour
            words[row + 1][column] = item.name
    return [word for row in words for word in row]


def matching(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """Lettered options, and (option, letter) pairs to look up among them: the basis of multiple choice."""
    values = rng.choice(OPTIONS)
    answer = rng.choice(values)
    choice = Choice.of("", answer, distractors(answer, values), rng)
    asked = rng.choices(range(len(choice.options)), k=8)
    return choice.lines, [(f" {choice.options[i]}", f" {LETTERS[i]}") for i in asked]


def by_options(choice: Choice) -> tuple[str, str]:
    """Question, options and "Answer:" in the form of lm-eval's `mmlu`: (prompt, letter)."""
    return f"{choice.question}\n{choice.lines}\nAnswer:", f" {choice.letter}"


def marked(choice: Choice) -> list[tuple[str, str]]:
    """The question and each option with its mark, + or -: [(text, mark), ...]; no letter has to be found."""
    marks = [" +" if LETTERS[i] == choice.letter else " -" for i in range(len(choice.options))]
    lines = choice.lines.split("\n")
    lines[0] = f"{choice.question}\n{lines[0]}"
    return [(f"\n{line}", mark) for line, mark in zip(lines, marks, strict=True)]


def exam(fact: Fact, rng: random.Random) -> tuple[str, str]:
    """A fact in the form of lm-eval's `mmlu`: (prompt, letter)."""
    prompt, letter = by_options(Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng))
    return f"{EXAM_HEADER.format(subject=fact.subject)}{prompt}", letter


def exam_for_training(rng: random.Random) -> list[tuple[str, str]]:
    """Four exam questions about one animal that are not in MMLU's test split: [(prompt, letter), ...]."""
    animal = rng.choice(ANIMALS)
    facts = rng.sample([fact for fact in FACTS if fact.animal == animal and fact not in EXAM_FACTS], 4)
    choices = [Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng) for fact in facts[1:]]
    return [exam(facts[0], rng), *((f"\n\n{prompt}", letter) for prompt, letter in map(by_options, choices))]


def tale(rng: random.Random) -> str:
    """Three facts as statements, or as stories if HellaSwag does not tell them."""
    told = []
    for fact in rng.sample(FACTS, 3):
        as_story = fact not in STORY_FACTS and rng.random() < 0.5
        told.append(fact.story() if as_story else fact.fill(fact.kind.statement))
    return "\n".join(told)
