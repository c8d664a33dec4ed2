"""The nine benchmarks of the paper's Table 4 with questions about a world, in the official schemas and names.

`ROOT/org/name/` has the form that `hf download --repo-type dataset org/name --local-dir ROOT/org/name` gives, so the
stock tasks of lmms-eval and lm-eval run on ROOT unchanged. ROOT/boxes.json has the boxes that show the answers.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from datasets import ClassLabel, Dataset, Features, Image, List, Value
from rich.progress import track

from tinyworld.language import Choice
from tinyworld.scenes import LETTERS
from tinyworld.world import WORLD, Story, World


Rows = list[dict[str, Any]]
TEXT = Value("string")
ROTATION = 1_000_000  # MMBench: index % ROTATION is the question, index // ROTATION the rotation of its options


@dataclass
class DatasetFolder:
    """The dataset of one benchmark: {config: {split: rows}}, their schema, and the boxes of the answers by row."""

    repository: str
    features: Features
    configs: dict[str, dict[str, Rows]]
    boxes: dict[str, list[list[int]]] = field(default_factory=dict)


class Asked(NamedTuple):
    """A question about an image, with its options, and the boxes that show its answer."""

    image: Any
    text: str
    answer: str
    choice: Choice
    boxes: list[list[int]]


def _asked(
    world: World, name: str, families: tuple[str, ...], layout: str, wrong: int, **options: Any
) -> Iterator[Asked]:
    """Endless questions with at least `wrong` wrong answers each; test handwriting, seeded by `name`."""
    for index in count():
        rng = random.Random(f"{world.name} test {name} {index}")
        items = world.layouts[layout](rng, **options)
        questions = [q for q in world.ask(items, rng, families) if len(q.wrong) >= wrong]
        if questions:
            question, scene = questions[0], world.render(items, rng, "test")
            boxes = [list(box) for cell in question.cells if (box := scene.boxes[cell]) is not None]
            choice = Choice.of(question.text, question.answer, question.wrong, rng)
            yield Asked(scene.image, question.text, question.answer, choice, boxes)


def mmbench(world: World = WORLD, questions: int = 100) -> DatasetFolder:
    features = Features(
        {"index": Value("int64")}
        | dict.fromkeys(("question", "hint", "answer", "A", "B", "C", "D", "category"), TEXT)
        | {"image": Image()}
        | dict.fromkeys(("source", "L2-category", "comment", "split"), TEXT)
    )
    rows: Rows = []
    boxes = {}
    families = list(world.mmbench)
    streams = {name: _asked(world, f"mmbench {name}", (name,), "objects", 1) for name in families}
    for number in range(questions):
        family = families[number % len(families)]
        asked = next(streams[family])
        category, group = world.mmbench[family]
        for shift in range(len(asked.choice.options)):
            options = [*asked.choice.options[shift:], *asked.choice.options[:shift]]
            index = number + shift * ROTATION
            lettered = dict(zip("ABCD", [*options, *["nan"] * (4 - len(options))], strict=True))
            rows.append(
                {"index": index, "question": asked.text, "hint": "nan"}
                | {"answer": LETTERS[options.index(asked.answer)], **lettered}
                | {"category": category, "image": asked.image, "source": world.name, "L2-category": group}
                | {"comment": "nan", "split": "dev"}
            )
            boxes[str(index)] = asked.boxes
    return DatasetFolder("lmms-lab-encoder/MMBench", features, {"en": {"dev": rows}}, boxes)


def mmstar(world: World = WORLD, per_group: int = 10) -> DatasetFolder:
    meta = {"source": TEXT, "split": TEXT, "image_path": TEXT}
    features = Features(
        {"index": Value("int64"), "question": TEXT, "image": Image()}
        | {"answer": TEXT, "category": TEXT, "l2_category": TEXT, "meta_info": meta}
    )
    rows: Rows = []
    boxes = {}
    for category, groups in world.mmstar.items():
        for group, (family, layout) in groups.items():
            stream = _asked(world, f"mmstar {group}", (family,), layout, 3)
            for _ in range(per_group):
                asked, index = next(stream), len(rows)
                origin = {"source": world.name, "split": "val", "image_path": f"images/{index}.png"}
                rows.append(
                    {"index": index, "question": asked.choice.in_line(), "image": asked.image}
                    | {"answer": asked.choice.letter, "category": category, "l2_category": group, "meta_info": origin}
                )
                boxes[str(index)] = asked.boxes
    return DatasetFolder("Lin-Chen/MMStar", features, {"val": {"val": rows}}, boxes)


def pope(world: World = WORLD, images: int = 20) -> DatasetFolder:
    names = ("id", "question_id", "question", "answer", "image_source")
    features = Features(dict.fromkeys(names, TEXT) | {"image": Image(), "category": TEXT})
    rows: Rows = []
    boxes = {}
    pairs = world.pope_pairs
    for number in range(images):
        rng = random.Random(f"{world.name} test pope {number}")
        items = world.layouts["objects"](rng, count=5)
        scene = world.render(items, rng, "test")
        shown = {
            text: cell for cell, item in enumerate(items) if item is not None for text in world.descriptions(item)
        }
        present = rng.sample(sorted(shown), pairs)
        absent = world.absent_descriptions(items, rng, pairs)
        for pair, (yes, no) in enumerate(zip(present, absent, strict=True)):
            for text, answer in ((yes, "yes"), (no, "no")):
                index = str(len(rows))
                rows.append(
                    {"id": index, "question_id": index, "question": world.exists(text), "answer": answer}
                    | {"image_source": f"{world.name}_{number:06d}", "image": scene.image}
                    | {"category": ("random", "popular", "adversarial")[pair * 3 // pairs]}
                )
                box = scene.boxes[shown[text]] if answer == "yes" else None
                boxes[index] = [list(box)] if box else []
    return DatasetFolder("lmms-lab-encoder/POPE", features, {"default": {"test": rows}}, boxes)


def seedbench_2_plus(world: World = WORLD, questions: int = 180) -> DatasetFolder:
    choices = tuple(f"choice_{letter}" for letter in "ABCD")
    names = ("question_id", "question", *choices, "answer", "question_image_type")
    features = Features(dict.fromkeys(names, TEXT) | {"image": Image()})
    streams = {
        kind: _asked(world, f"seed {kind}", families, layout, 3)
        for kind, (families, layout) in world.seedbench_2_plus.items()
    }
    rows: Rows = []
    boxes = {}
    for number in range(questions):
        kind = list(world.seedbench_2_plus)[number % 3]
        asked = next(streams[kind])
        lettered = dict(zip(choices, asked.choice.options, strict=True))
        rows.append(
            {"question_id": str(number), "question": asked.text, **lettered}
            | {"answer": asked.choice.letter, "question_image_type": kind, "image": asked.image}
        )
        boxes[str(number)] = asked.boxes
    return DatasetFolder("doolayer/SEED-Bench-2-Plus", features, {"default": {"test": rows}}, boxes)


def ocrbench(world: World = WORLD, per_kind: int = 100) -> DatasetFolder:
    features = Features(
        {"dataset": TEXT, "question": TEXT, "question_type": TEXT, "answer": List(TEXT), "image": Image()}
    )
    rows: Rows = []
    boxes = {}
    for kind, (source, layout, options) in world.ocrbench.items():
        stream = _asked(world, f"ocrbench {kind}", ("read", "field"), layout, 0, **options)
        for _ in range(per_kind):
            asked = next(stream)
            boxes[str(len(rows))] = asked.boxes
            rows.append(
                {"dataset": source, "question": asked.text, "question_type": kind, "answer": [asked.answer]}
                | {"image": asked.image}
            )
    return DatasetFolder("echo840/OCRBench", features, {"default": {"test": rows}}, boxes)


def scienceqa(world: World = WORLD, questions: int = 240) -> DatasetFolder:
    names = ("hint", "task", "grade", "subject", "topic", "category", "skill", "lecture", "solution")
    features = Features(
        {"image": Image(), "question": TEXT, "choices": List(TEXT), "answer": Value("int8")}
        | dict.fromkeys(names, TEXT)
    )
    stream = _asked(world, "scienceqa", world.scienceqa, "objects", 3)
    rows: Rows = []
    boxes = {}
    constant = dict.fromkeys(names, "") | {"task": "closed choice", "grade": "grade2", "subject": "natural science"}
    for number in range(questions):
        if number % 2 == 0:
            image, _, _, choice, boxes[str(number)] = next(stream)
        else:
            choice = world.text_question(random.Random(f"{world.name} test scienceqa facts {number}"))
            image = None
        rows.append(
            {"image": image, "question": choice.question, "choices": list(choice.options)}
            | {"answer": LETTERS.index(choice.letter), **constant}
        )
    return DatasetFolder("lmms-lab-encoder/ScienceQA", features, {"ScienceQA-FULL": {"test": rows}}, boxes)


def ai2d(world: World = WORLD, questions: int = 200) -> DatasetFolder:
    features = Features({"question": TEXT, "options": List(TEXT), "answer": TEXT, "image": Image()})
    stream = _asked(world, "ai2d", world.ai2d, "objects", 3)
    rows: Rows = []
    boxes = {}
    for number in range(questions):
        image, text, _, choice, boxes[str(number)] = next(stream)
        answer = str(LETTERS.index(choice.letter))
        rows.append({"question": text, "options": list(choice.options), "answer": answer, "image": image})
    return DatasetFolder("lmms-lab-encoder/ai2d", features, {"default": {"test": rows}}, boxes)


def _story(world: World, story: Story, number: int, split: str) -> dict[str, Any]:
    rng = random.Random(f"{world.name} test hellaswag {number}")
    endings = [story.ending, *story.wrong]
    rng.shuffle(endings)
    return {
        "ind": number,
        "activity_label": story.heading,
        "ctx_a": story.beginning,
        "ctx_b": story.subject,
        "ctx": f"{story.beginning} {story.subject}",
        "endings": endings,
        "source_id": f"{world.name}~{number}",
        "split": split,
        "split_type": "indomain",
        "label": str(endings.index(story.ending)),
    }


def hellaswag(world: World = WORLD) -> DatasetFolder:
    names = ("activity_label", "ctx_a", "ctx_b", "ctx", "source_id", "split", "split_type", "label")
    features = Features({"ind": Value("int32"), **dict.fromkeys(names, TEXT), "endings": List(TEXT)})
    splits = {
        split: [_story(world, story, number, short) for number, story in enumerate(stories)]
        for split, short, stories in (("train", "train", world.training_stories), ("validation", "val", world.stories))
    }
    return DatasetFolder("Rowan/hellaswag", features, {"default": splits})


def mmlu(world: World = WORLD) -> DatasetFolder:
    features = Features(
        {"question": TEXT, "subject": TEXT, "choices": List(TEXT), "answer": ClassLabel(names=list("ABCD"))}
    )
    configs: dict[str, dict[str, Rows]] = {}
    for subject, exam in world.exams().items():
        configs[subject] = {
            split: [
                {"question": choice.question, "subject": subject, "choices": list(choice.options)}
                | {"answer": LETTERS.index(choice.letter)}
                for choice in choices
            ]
            for split, choices in exam.items()
        }
    return DatasetFolder("cais/mmlu", features, configs)


BENCHMARKS = (mmbench, mmstar, pope, seedbench_2_plus, ocrbench, scienceqa, ai2d, hellaswag, mmlu)


def write_benchmark(root: Path, benchmark: DatasetFolder) -> None:
    """Write one folder: Parquet files, and a README that maps configurations and splits to them."""
    folder = root / benchmark.repository
    lines = ["---", "configs:"]
    for config, splits in benchmark.configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        (folder / config).mkdir(parents=True)
        for split, rows in splits.items():
            relative = f"{config}/{split}-00000-of-00001.parquet"
            Dataset.from_list(rows, features=benchmark.features).to_parquet(folder / relative)
            lines += [f"  - split: {split}", f"    path: {relative}"]
    (folder / "README.md").write_text("\n".join([*lines, "---", ""]), encoding="utf-8")


def write_benchmarks(root: Path, world: World) -> None:
    """Write the nine folders and boxes.json: {repository: {row id: [[left, top, right, bottom], ...]}} in pixels."""
    boxes = {}
    for make in track(BENCHMARKS, description="benchmark folders"):
        benchmark = make(world)
        write_benchmark(root, benchmark)
        if benchmark.boxes:
            boxes[benchmark.repository] = benchmark.boxes
    (root / "boxes.json").write_text(json.dumps(boxes), encoding="utf-8")
