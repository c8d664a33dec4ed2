"""The language: how scenes are listed and described, and how questions are put, as the harnesses put them."""

import random
from dataclasses import dataclass

from tinyworld.facts import ATTRIBUTES, EXAM_FACTS, FACTS, STORY_FACTS, Fact
from tinyworld.layouts import Items
from tinyworld.questions import Question, ask
from tinyworld.scenes import COLOURS, LETTERS, POSITIONS, SHAPES, SIZES, Item


GRID = 6  # patches a side: the listing has one word for each of the 36 visual tokens
EMPTY = "."
LISTED_WORDS = (*SIZES, *COLOURS, *SHAPES, "letter", "digit", "sign", *LETTERS, *"0123456789", "+", "-", EMPTY)

ANSWER_WORDS = (
    tuple(COLOURS),
    SHAPES,
    POSITIONS,
    tuple(str(n) for n in range(10, 100)),
    tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES),
    *(attribute.values for attribute in ATTRIBUTES.values()),
)

LETTER_PROMPT = "Answer with the option's letter from the given choices directly"
SHORT_PROMPT = "Answer the question using a single word or phrase."
EXAM_HEADER = "The following are multiple choice questions (with answers) about {subject}.\n\n"


def _words(item: Item) -> list[str]:
    if item.kind == "shape":
        return [item.size, item.colour, item.name]
    return [item.name, item.name, "sign" if item.kind == "operator" else item.kind]


def listing(items: Items, rng: random.Random) -> list[str]:
    """The scene as 36 words in reading order, four a cell, as a decoder without eyes can read it.

    Each cell's words stand in random order with a random repetition, since visual tokens too spread what they know.
    """
    words = [[EMPTY] * GRID for _ in range(GRID)]
    for cell, item in enumerate(items):
        if item is None:
            continue
        known = _words(item)
        spread = [*known, rng.choice(known)]
        rng.shuffle(spread)
        for i, word in enumerate(spread):
            words[cell // 3 * 2 + i // 2][cell % 3 * 2 + i % 2] = word
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
    def of(cls, text: str, answer: str, wrong: list[str] | tuple[str, ...], rng: random.Random) -> "Choice":
        options = [answer, *wrong]
        rng.shuffle(options)
        return cls(text, tuple(options), LETTERS[options.index(answer)])

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
    raise ValueError(f"no prompt style {style!r}; known: mmbench, mmstar, lines")


def open_turn(question: Question) -> tuple[str, str]:
    """The question as it is, answered in words."""
    prompt = question.text if question.family in ("read", "field") else f"{question.text}\n{SHORT_PROMPT}"
    return prompt, question.answer


def turn(question: Question, rng: random.Random) -> tuple[str, str]:
    """One (user, assistant) turn on a scene, in a style that fits its family."""
    style = rng.choices(("open", "mmbench", "mmstar", "lines"), weights=(3, 1, 1, 1))[0]
    if style == "open" or question.family == "exists" or len(question.wrong) < 3:
        return open_turn(question)
    choice = Choice.of(question.text, question.answer, question.wrong[: rng.choice((2, 3, 3))], rng)
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


def taught_turns(items: Items, rng: random.Random, count: int) -> list[tuple[str, str]]:
    """As `scene_turns`, but questions by options often follow their own answer in words: matching is learnt."""
    turns: list[tuple[str, str]] = []
    for question in scene_questions(items, rng, count):
        asked = turn(question, rng)
        if asked[1] != question.answer and rng.random() < 0.5:
            turns.append(open_turn(question))
        turns.append(asked)
    return turns


def fact_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` (user, assistant) turns on facts: in words, by options as ScienceQA puts it, or one after the other."""
    turns: list[tuple[str, str]] = []
    for fact in rng.sample(FACTS, count):
        text = fact.fill(fact.kind.question)
        style = rng.choice(("words", "options", "both"))
        if style != "options":
            turns.append((f"{text}\n{SHORT_PROMPT}", fact.value))
        if style != "words":
            choice = Choice.of(text, fact.value, fact.wrong(rng, rng.choice((2, 3, 3))), rng)
            turns.append((put(choice, "lines"), choice.letter))
    return turns


def matching(rng: random.Random) -> tuple[str, str]:
    """A word and lettered options, one of which it is: (prompt, letter)."""
    options = rng.sample(rng.choice(ANSWER_WORDS), rng.randint(2, 4))
    choice = Choice.of(options[0], options[0], options[1:], rng)
    return f"{choice.question}\n{choice.lines}", choice.letter


def exam(fact: Fact, rng: random.Random) -> tuple[str, str]:
    """A fact as lm-eval's `mmlu` puts it: (prompt, letter)."""
    choice = Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong(rng), rng)
    return f"{EXAM_HEADER.format(subject=fact.subject)}{choice.question}\n{choice.lines}\nAnswer:", f" {choice.letter}"


def exam_for_training(rng: random.Random) -> tuple[str, str]:
    """An exam question on a fact that MMLU's test split does not ask."""
    return exam(rng.choice([fact for fact in FACTS if fact not in EXAM_FACTS]), rng)


def tale(rng: random.Random) -> str:
    """Three statements, or stories on facts that HellaSwag does not tell."""
    told = []
    for fact in rng.sample(FACTS, 3):
        as_story = fact not in STORY_FACTS and rng.random() < 0.5
        told.append(fact.story() if as_story else fact.fill(fact.kind.statement))
    return "\n".join(told)
