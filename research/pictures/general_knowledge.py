"""General knowledge without pictures: questions in the form of MMLU, stories in that of HellaSwag, and training turns.

Each subject keeps its first five questions for MMLU's `dev` split and for training; the others are the test.
"""

import functools
import random
from pathlib import Path
from typing import Any

import yaml

from tinyworld.language import SHORT_PROMPT, Choice, choice_prompt
from tinyworld.world import Exam, Story


DEV = 5
TRAINING_STORIES = 10
STORY_DRAWS = 2  # rows of HellaSwag a story, each with other wrong endings


@functools.cache
def _file() -> dict[str, Any]:
    return yaml.safe_load((Path(__file__).parent / "general_knowledge.yaml").read_text(encoding="utf-8"))


@functools.cache
def exams() -> dict[str, Exam]:
    """MMLU's subjects with their questions; the questions of a list are dealt to its subjects in turn."""
    found: dict[str, Exam] = {}
    for entry in _file()["exams"]:
        rng = random.Random(f"pictures exams {entry['ask']} {entry['subjects'][0]}")
        keys = list(entry["answers"])
        rng.shuffle(keys)
        values = sorted(set(entry["answers"].values()))
        for number, subject in enumerate(entry["subjects"]):
            choices = []
            for key in keys[number :: len(entry["subjects"])]:
                answer = entry["answers"][key]
                wrong = rng.sample([value for value in values if value != answer], 3)
                choices.append(Choice.of(entry["ask"].format(key), answer, tuple(wrong), rng))
            found[subject] = {"test": choices[DEV:], "dev": choices[:DEV]}
    return dict(sorted(found.items()))


def _stories(first: int, last: int, draws: int) -> tuple[Story, ...]:
    """Some of the stories, each `draws` times with its own ending and three of others."""
    told = _file()["stories"]
    rng = random.Random("pictures stories")
    found = []
    for _ in range(draws):
        for heading, beginning, ending in told[first:last]:
            context, _, subject = beginning.rpartition(". ")
            wrong = rng.sample([other for _, _, other in told if other != ending], 3)
            found.append(Story(heading, f"{context}.", subject, ending, tuple(wrong)))
    return tuple(found)


def stories() -> tuple[Story, ...]:
    """The stories of HellaSwag's validation split."""
    return _stories(TRAINING_STORIES, len(_file()["stories"]), STORY_DRAWS)


def training_stories() -> tuple[Story, ...]:
    """The stories of HellaSwag's training split."""
    return _stories(0, TRAINING_STORIES, 1)


def text_question(rng: random.Random) -> Choice:
    """A question of the test."""
    return rng.choice([choice for exam in exams().values() for choice in exam["test"]])


def text_turns(rng: random.Random, count: int) -> list[tuple[str, str]]:
    """`count` (user, assistant) turns of training, in words or with options."""
    turns = []
    for choice in rng.sample([choice for exam in exams().values() for choice in exam["dev"]], count):
        if rng.random() < 0.5:
            turns.append((f"{choice.question}\n{SHORT_PROMPT}", choice.answer))
        else:
            turns.append((choice_prompt(choice, "lines"), choice.letter))
    return turns
