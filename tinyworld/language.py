"""The language: how scenes are listed and described, and how questions are put, as the harnesses put them."""

import random
from dataclasses import dataclass

from tinyworld.facts import ANIMALS, ATTRIBUTES, EXAM_FACTS, FACTS, STORY_FACTS, Fact
from tinyworld.layouts import Items
from tinyworld.questions import Question, ask
from tinyworld.rings import others
from tinyworld.scenes import COLOURS, DIGITS, LETTERS, POSITIONS, SHAPES, SIZES


GRID = 6  # patches a side: the listing has one word for each of the 36 visual tokens
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
OPEN_FAMILIES = ("exists", "read", "field")  # never asked by options
SHORT_PROMPT = "Answer the question using a single word or phrase."
EXAM_HEADER = "The following are multiple choice questions (with answers) about {subject}.\n\n"


def listing(items: Items) -> list[str]:
    """The scene as 36 words in reading order, four a cell, as a decoder without eyes can read it.

    Each kind of word has its corner of the cell: size (or kind) and colour above, name and position below.
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


def caption(items: Items) -> str:
    """Everything that stands in the scene, cell by cell in reading order (stage 1)."""
    told = []
    for cell, item in enumerate(items):
        if item is None:
            continue
        name = f"a {item.size} {item.colour} {item.name}" if item.kind == "shape" else f"the {item.kind} {item.name}"
        told.append(f"{POSITIONS[cell]}: {name}")
    return "; ".join(told) + "."


@dataclass(frozen=True)
class Choice:
    """A question with lettered options."""

    question: str
    options: tuple[str, ...]
    letter: str

    @classmethod
    def of(cls, text: str, answer: str, wrong: tuple[str, ...], rng: random.Random) -> "Choice":
        """The options in their round order, half the time begun with the first of the alphabet, else anywhere."""
        ring = (answer, *wrong)
        first = ring.index(min(ring)) if rng.random() < 0.5 else rng.randrange(len(ring))
        options = ring[first:] + ring[:first]
        return cls(text, options, LETTERS[options.index(answer)])

    @property
    def lines(self) -> str:
        return "\n".join(f"{LETTERS[i]}. {option}" for i, option in enumerate(self.options))

    def in_line(self) -> str:
        """MM-Star's and MathVista's style, the options inside the question."""
        return f"{self.question}\nOptions: " + ", ".join(f"{LETTERS[i]}: {o}" for i, o in enumerate(self.options))


def put(choice: Choice, style: str) -> str:
    """A multiple-choice question as one of the benchmarks' tasks words it."""
    if style == "mmbench":
        return f"{choice.question} There are several options:\n{choice.lines}\n\n{LETTER_PROMPT}."
    if style == "mmstar":
        return f"{choice.in_line()}\n{LETTER_PROMPT}"
    if style == "lines":  # SEED-Bench-2-Plus, ScienceQA, AI2D
        return f"{choice.question}\n{choice.lines}\n{LETTER_PROMPT}."
    raise ValueError(f"no prompt style {style!r}; known: {', '.join(STYLES)}")


def open_turn(question: Question) -> tuple[str, str]:
    """The question as it is, answered in words."""
    prompt = question.text if question.family in ("read", "field") else f"{question.text}\n{SHORT_PROMPT}"
    return prompt, question.answer


def turn(question: Question, rng: random.Random) -> tuple[str, str]:
    """One (user, assistant) turn on a scene, open or by options."""
    style = rng.choice(("open", *STYLES))
    if style == "open" or question.family in OPEN_FAMILIES:
        return open_turn(question)
    choice = Choice.of(question.text, question.answer, question.wrong, rng)
    return put(choice, style), choice.letter


def scene_questions(items: Items, rng: random.Random, count: int) -> list[Question]:
    """Up to `count` questions on one scene, spread over the families that it can be asked about."""
    by_family: dict[str, list[Question]] = {}
    for question in ask(items, rng):
        by_family.setdefault(question.family, []).append(question)
    chosen: list[Question] = []
    while len(chosen) < count and by_family:
        family = rng.choice(sorted(by_family))
        chosen.append(by_family[family].pop())
        if not by_family[family]:
            del by_family[family]
    return chosen


def scene_turns(items: Items, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """Up to `count` turns on one scene, each in a style of its own."""
    return [turn(question, rng) for question in scene_questions(items, rng, count)]


def fact_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` (user, assistant) turns on facts, in words or by options as ScienceQA puts it."""
    turns: list[tuple[str, str]] = []
    for fact in rng.sample(FACTS, count):
        text = fact.fill(fact.kind.question)
        if rng.random() < 0.5:
            turns.append((f"{text}\n{SHORT_PROMPT}", fact.value))
        else:
            choice = Choice.of(text, fact.value, fact.wrong, rng)
            turns.append((put(choice, "lines"), choice.letter))
    return turns


def matching(rng: random.Random) -> tuple[str, list[tuple[str, str]]]:
    """Lettered options, and (option, letter) pairs to find among them: what answering by options builds on."""
    values = rng.choice(OPTIONS)
    answer = rng.choice(values)
    choice = Choice.of("", answer, others(answer, values), rng)
    asked = rng.choices(range(len(choice.options)), k=8)
    return choice.lines, [(f" {choice.options[i]}", f" {LETTERS[i]}") for i in asked]


def by_options(choice: Choice) -> tuple[str, str]:
    """Question, options and "Answer:", as lm-eval's `mmlu` has them: (prompt, letter)."""
    return f"{choice.question}\n{choice.lines}\nAnswer:", f" {choice.letter}"


def marked(choice: Choice) -> list[tuple[str, str]]:
    """The question and each option with its mark, + or -: [(text, mark), ...], to learn which before where."""
    marks = [" +" if LETTERS[i] == choice.letter else " -" for i in range(len(choice.options))]
    lines = choice.lines.split("\n")
    lines[0] = f"{choice.question}\n{lines[0]}"
    return [(f"\n{line}", mark) for line, mark in zip(lines, marks, strict=True)]


def exam(fact: Fact, rng: random.Random) -> tuple[str, str]:
    """A fact as lm-eval's `mmlu` puts it: (prompt, letter)."""
    prompt, letter = by_options(Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng))
    return f"{EXAM_HEADER.format(subject=fact.subject)}{prompt}", letter


def exam_for_training(rng: random.Random) -> list[tuple[str, str]]:
    """Four exam questions on one animal that MMLU's test split does not ask: [(prompt, letter), ...]."""
    animal = rng.choice(ANIMALS)
    facts = rng.sample([fact for fact in FACTS if fact.animal == animal and fact not in EXAM_FACTS], 4)
    choices = [Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng) for fact in facts[1:]]
    return [exam(facts[0], rng), *((f"\n\n{prompt}", letter) for prompt, letter in map(by_options, choices))]


def tale(rng: random.Random) -> str:
    """Three statements, or stories on facts that HellaSwag does not tell."""
    told = []
    for fact in rng.sample(FACTS, 3):
        as_story = fact not in STORY_FACTS and rng.random() < 0.5
        told.append(fact.story() if as_story else fact.fill(fact.kind.statement))
    return "\n".join(told)
