"""The language: listings and captions of scenes, and questions in the words of the prompts of the harnesses."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tinyworld.distractors import distractors
from tinyworld.facts import ANIMALS, ATTRIBUTES, EXAM_FACTS, FACTS, STORY_FACTS, Fact
from tinyworld.layouts import Items
from tinyworld.questions import Question, ask
from tinyworld.scenes import COLOURS, DIGITS, LETTERS, POSITIONS, SHAPES, SIZES, Item


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

LETTER_PROMPT = "Answer with the option's letter from the given choices directly"
STYLES = ("mmbench", "mmstar", "lines")
OPEN_FAMILIES = ("exists", "read", "field")  # never asked with options
DESCRIBE = "Describe the image."
SHORT_PROMPT = "Answer the question using a single word or phrase."
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


def told(item: Item) -> str:
    """An item in words: `a small red ring`, `the letter C`."""
    return f"a {item.size} {item.colour} {item.name}" if item.kind == "shape" else f"the {item.kind} {item.name}"


def caption(items: Items, told: Callable[[Item], str] = told) -> str:
    """All items of the scene, cell by cell in reading order (stage 1)."""
    return "; ".join(f"{POSITIONS[cell]}: {told(item)}" for cell, item in enumerate(items) if item is not None) + "."


@dataclass(frozen=True)
class Choice:
    """A question with lettered options."""

    question: str
    options: tuple[str, ...]
    letter: str

    @classmethod
    def of(cls, text: str, answer: str, wrong: tuple[str, ...], rng: random.Random) -> "Choice":
        """The options in cyclic order; half the time the alphabetically first one leads, otherwise any of them."""
        cycle = (answer, *wrong)
        first = cycle.index(min(cycle)) if rng.random() < 0.5 else rng.randrange(len(cycle))
        options = cycle[first:] + cycle[:first]
        return cls(text, options, LETTERS[options.index(answer)])

    @property
    def answer(self) -> str:
        """The option that the letter stands for."""
        return self.options[LETTERS.index(self.letter)]

    @property
    def lines(self) -> str:
        return "\n".join(f"{LETTERS[i]}. {option}" for i, option in enumerate(self.options))

    def in_line(self) -> str:
        """The style of MM-Star and MathVista: options inside the question."""
        return f"{self.question}\nOptions: " + ", ".join(f"{LETTERS[i]}: {o}" for i, o in enumerate(self.options))


def choice_prompt(choice: Choice, style: str) -> str:
    """A multiple-choice question in the words of one of the benchmarks' tasks."""
    if style == "mmbench":
        return f"{choice.question} There are several options:\n{choice.lines}\n\n{LETTER_PROMPT}."
    if style == "mmstar":
        return f"{choice.in_line()}\n{LETTER_PROMPT}"
    if style == "lines":  # SEED-Bench-2-Plus, ScienceQA, AI2D
        return f"{choice.question}\n{choice.lines}\n{LETTER_PROMPT}."
    raise ValueError(f"no prompt style {style!r}; known: {', '.join(STYLES)}")


def open_turn(question: Question) -> tuple[str, str]:
    """The question without options, and its answer in words."""
    prompt = question.text if question.family in ("read", "field") else f"{question.text}\n{SHORT_PROMPT}"
    return prompt, question.answer


def lettered_turn(question: Question, style: str, rng: random.Random) -> tuple[str, str]:
    """The question with its options in the words of one of the benchmarks' tasks, and the letter of the answer."""
    choice = Choice.of(question.text, question.answer, question.wrong, rng)
    return choice_prompt(choice, style), choice.letter


def turn(question: Question, rng: random.Random) -> tuple[str, str]:
    """One (user, assistant) turn about a scene, open or with options."""
    style = rng.choice(("open", *STYLES))
    if style == "open" or question.family in OPEN_FAMILIES:
        return open_turn(question)
    return lettered_turn(question, style, rng)


def scene_questions(items: Items, rng: random.Random, count: int) -> list[Question]:
    """Up to `count` questions about one scene."""
    return spread(ask(items, rng), rng, count)


def spread(asked: list[Question], rng: random.Random, count: int) -> list[Question]:
    """Up to `count` of the questions, from as many of their families as possible."""
    by_family: dict[str, list[Question]] = {}
    for question in asked:
        by_family.setdefault(question.family, []).append(question)
    chosen: list[Question] = []
    while len(chosen) < count and by_family:
        family = rng.choice(sorted(by_family))
        chosen.append(by_family[family].pop())
        if not by_family[family]:
            del by_family[family]
    return chosen


def scene_turns(items: Items, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Up to `count` turns about one scene, each in its own style."""
    return [turn(question, rng) for question in scene_questions(items, rng, count)]


def fact_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` (user, assistant) turns about facts, in words or with options in ScienceQA's style."""
    turns: list[tuple[str, str]] = []
    for fact in rng.sample(FACTS, count):
        text = fact.fill(fact.kind.question)
        if rng.random() < 0.5:
            turns.append((f"{text}\n{SHORT_PROMPT}", fact.value))
        else:
            choice = Choice.of(text, fact.value, fact.wrong, rng)
            turns.append((choice_prompt(choice, "lines"), choice.letter))
    return turns


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
