"""The language: captions of scenes, and questions in the words of the prompts of the harnesses."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tinyworld.facts import FACTS, Fact
from tinyworld.layouts import Items
from tinyworld.questions import Question, ask
from tinyworld.scenes import LETTERS, POSITIONS, Item


LETTER_PROMPT = "Answer with the option's letter from the given choices directly"
STYLES = ("mmbench", "mmstar", "lines")
OPEN_FAMILIES = ("exists", "read", "field")  # never asked with options
DESCRIBE = "Describe the image."
SHORT_PROMPT = "Answer the question using a single word or phrase."


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
    """A multiple-choice question in the words of one of the benchmarks' tasks, in a style of `STYLES`."""
    if style == "mmbench":
        return f"{choice.question} There are several options:\n{choice.lines}\n\n{LETTER_PROMPT}."
    if style == "mmstar":
        return f"{choice.in_line()}\n{LETTER_PROMPT}"
    return f"{choice.question}\n{choice.lines}\n{LETTER_PROMPT}."  # SEED-Bench-2-Plus, ScienceQA, AI2D


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


def fact_choice(fact: Fact, rng: random.Random) -> Choice:
    return Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng)


def fact_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` (user, assistant) turns about facts, in words or with options in ScienceQA's style."""
    turns: list[tuple[str, str]] = []
    for fact in rng.sample(FACTS, count):
        if rng.random() < 0.5:
            turns.append((f"{fact.fill(fact.kind.question)}\n{SHORT_PROMPT}", fact.value))
        else:
            choice = fact_choice(fact, rng)
            turns.append((choice_prompt(choice, "lines"), choice.letter))
    return turns
