"""What a world is: scenes, questions about them, questions without a scene, and which of them each benchmark asks.

tinyworld's own is `WORLD`.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tinyworld import layouts
from tinyworld.facts import ANIMALS, EXAM_FACTS, FACTS, MMLU_SUBJECTS, STORY_FACTS, Fact
from tinyworld.language import Choice, caption, fact_choice, fact_turns, scene_turns, told
from tinyworld.layouts import Items
from tinyworld.questions import Question, absent_descriptions, ask, descriptions
from tinyworld.scenes import CANVAS, COLOURS, LETTERS, SHAPES, SIZES, Item, Scene, render


Turns = list[tuple[str, str]]  # (user, assistant)
Exam = dict[str, list[Choice]]  # split ("test" or "dev") -> its questions


@dataclass(frozen=True)
class Story:
    """A story of HellaSwag: heading, beginning, the subject of its ending, the right ending and wrong ones."""

    heading: str
    beginning: str
    subject: str
    ending: str
    wrong: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """The functions that draw, describe and ask about scenes; all randomness comes from their `rng`.

    Attributes:
        canvas: width and height of an image in pixels.
        layouts: purpose -> function that draws what the nine cells contain.
        draw: a layout from the mixture of all training data.
        draw_easy: an easy layout, for the first images of stage 1.
        easy_share: their share of all training images.
        render: draws the image, `render(items, rng, split)` with split "train" or "test".
        caption: all items of a scene, in words.
        part_names: everything that a cell can hold; the first is the name of an empty one.
        part_name: what a cell holds, one of `part_names`.
        ask: questions of the named families about a scene.
        descriptions: what POPE calls an item of the scene.
        absent_descriptions: `count` such descriptions of what the scene lacks.
        exists: the question whether a description is in the image.
        scene_turns: `count` turns of training about a scene.
        text_turns: `count` turns of training without a scene.
        text_share: conversations of them per image of stage 2.
        easy_turns: `count` easy ones, with which stage 2 begins.
        easy_text_share: conversations of them per image of both stages.
        mmbench: family of questions -> (category, L2-category).
        mmstar: category -> group -> (family, layout).
        pope_pairs: questions with yes, and with no, about one image.
        seedbench_2_plus: type of image -> (families, layout).
        ocrbench: type of question -> (source dataset, layout, its options).
        scienceqa: families; every second question is `text_question(rng)`.
        ai2d: families.
        stories: of HellaSwag's validation split; `training_stories` of its training split.
        exams: MMLU's subjects with their questions.
    """

    name: str
    canvas: int
    layouts: Mapping[str, Callable[..., Items]]
    draw: Callable[[random.Random], Items]
    draw_easy: Callable[[random.Random], Items]
    easy_share: float
    render: Callable[[Items, random.Random, str], Scene]
    caption: Callable[[Items], str]
    part_names: tuple[str, ...]
    part_name: Callable[[Item | None], str]
    ask: Callable[[Items, random.Random, tuple[str, ...]], list[Question]]
    descriptions: Callable[[Item], list[str]]
    absent_descriptions: Callable[[Items, random.Random, int], list[str]]
    exists: Callable[[str], str]
    scene_turns: Callable[[Items, random.Random, int], Turns]
    text_turns: Callable[[random.Random, int], Turns]
    text_share: float
    easy_turns: Callable[[random.Random, int], Turns]
    easy_text_share: float
    mmbench: Mapping[str, tuple[str, str]]
    mmstar: Mapping[str, Mapping[str, tuple[str, str]]]
    pope_pairs: int
    seedbench_2_plus: Mapping[str, tuple[tuple[str, ...], str]]
    ocrbench: Mapping[str, tuple[str, str, Mapping[str, Any]]]
    scienceqa: tuple[str, ...]
    ai2d: tuple[str, ...]
    text_question: Callable[[random.Random], Choice]
    stories: tuple[Story, ...]
    training_stories: tuple[Story, ...]
    exams: Callable[[], Mapping[str, Exam]]


NOTHING = "nothing"
SIGNS = (
    *(f"the letter {letter}" for letter in LETTERS),
    *(f"the digit {digit}" for digit in range(10)),
    "the sign +",
    "the sign -",
)
SHAPE_NAMES = tuple(f"a {size} {colour} {shape}" for size in SIZES for colour in COLOURS for shape in SHAPES)


def part_name(item: Item | None) -> str:
    if item is None:
        return NOTHING
    return f"the sign {item.name}" if item.kind == "operator" else told(item)


MMBENCH = {
    "colour": ("attribute_recognition", "finegrained_perception (instance-level)"),
    "shape": ("object_localization", "finegrained_perception (instance-level)"),
    "at": ("image_scene", "coarse_perception"),
    "where": ("spatial_relationship", "finegrained_perception (cross-instance)"),
    "count": ("structuralized_imagetext_understanding", "logic_reasoning"),
    "size": ("physical_property_reasoning", "attribute_reasoning"),
}
MMSTAR = {
    "coarse perception": {
        "image scene and topic": ("count", "objects"),
        "image style & quality": ("colour", "objects"),
        "image emotion": ("shape", "objects"),
    },
    "fine-grained perception": {
        "object counting": ("count", "objects"),
        "recognition": ("at", "objects"),
        "localization": ("where", "objects"),
    },
    "instance reasoning": {
        "single-instance reasoning": ("shape", "objects"),
        "cross-instance attribute reasoning": ("colour", "objects"),
        "cross-instance relation reasoning": ("where", "objects"),
    },
    "logical reasoning": {
        "code & sequence reasoning": ("at", "sign"),
        "diagram reasoning": ("at", "form"),
        "common reasoning": ("colour", "sign"),
    },
    "science & technology": {
        "biology & chemistry & physics": ("where", "objects"),
        "electronics & energy & mechanical eng.": ("at", "form"),
        "geography & earth science & agriculture": ("where", "sign"),
    },
    "math": {
        "geometry": ("shape", "objects"),
        "numeric commonsense and calculation": ("at", "number"),
        "statistical reasoning": ("count", "sign"),
    },
}
SEED = {
    "chart": (("at",), "form"),
    "map": (("where", "at"), "objects"),
    "web": (("at", "where"), "sign"),
}
OCR_TYPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "Regular Text Recognition": ("IIIT5K", "letters", {"style": "regular", "known": True}),
    "Irregular Text Recognition": ("CT80", "letters", {"style": "irregular", "known": True}),
    "Artistic Text Recognition": ("WordArt", "letters", {"style": "artistic", "known": True}),
    "Handwriting Recognition": ("IAM", "letters", {"style": "handwritten", "known": True}),
    "Digit String Recognition": ("ORAND-CAR-A", "number", {}),
    "Non-Semantic Text Recognition": ("NonSemanticText", "letters", {"style": "regular", "known": False}),
    "Scene Text-centric VQA": ("STVQA", "sign", {}),
    "Doc-oriented VQA": ("docVQA", "form", {"icons": False}),
    "Key Information Extraction": ("SROIE", "form", {"icons": True}),
    "Handwritten Mathematical Expression Recognition": ("HME100k", "expression", {}),
}


def _story(fact: Fact) -> Story:
    ending, *wrong = (fact.kind.ending.format(value=value) for value in (fact.value, *fact.wrong))
    return Story(fact.kind.heading, fact.fill(fact.kind.beginning), "it", ending, tuple(wrong))


def _exams() -> dict[str, Exam]:
    exams: dict[str, Exam] = {}
    for animal, subject in zip(ANIMALS, MMLU_SUBJECTS, strict=True):
        exams[subject] = {"test": [], "dev": []}
        for fact in (fact for fact in FACTS if fact.animal == animal):
            rng = random.Random(f"tinyworld test mmlu {animal} {fact.attribute}")
            exams[subject]["test" if fact in EXAM_FACTS else "dev"].append(fact_choice(fact, rng))
    return exams


WORLD = World(
    name="tinyworld",
    canvas=CANVAS,
    layouts=layouts.LAYOUTS,
    draw=layouts.draw,
    draw_easy=layouts.draw,
    easy_share=0.0,
    render=render,
    caption=caption,
    part_names=(NOTHING, *SHAPE_NAMES, *SIGNS),
    part_name=part_name,
    ask=ask,
    descriptions=descriptions,
    absent_descriptions=absent_descriptions,
    exists="Is there a {} in the image?".format,
    scene_turns=scene_turns,
    text_turns=fact_turns,
    text_share=0.15,
    easy_turns=fact_turns,
    easy_text_share=0.0,
    mmbench=MMBENCH,
    mmstar=MMSTAR,
    pope_pairs=9,
    seedbench_2_plus=SEED,
    ocrbench=OCR_TYPES,
    scienceqa=("colour", "shape", "at", "where", "count"),
    ai2d=("at", "colour", "shape"),
    text_question=lambda rng: fact_choice(rng.choice(FACTS), rng),
    stories=tuple(_story(fact) for fact in FACTS if fact in STORY_FACTS),
    training_stories=tuple(_story(fact) for fact in FACTS if fact not in STORY_FACTS)[:50],
    exams=_exams,
)
