"""The nine benchmarks of the paper's Table 4 with questions about this world, in the official schemas and names.

`ROOT/org/name/` has the form that `hf download --repo-type dataset org/name --local-dir ROOT/org/name` gives, so the
stock tasks of lmms-eval and lm-eval run on ROOT unchanged. ROOT/boxes.json has the boxes that show the answers.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from datasets import ClassLabel, Dataset, Features, Image, List, Value
from rich.progress import track

from tinyworld import layouts
from tinyworld.facts import ANIMALS, EXAM_FACTS, FACTS, MMLU_SUBJECTS, STORY_FACTS, Fact
from tinyworld.language import Choice
from tinyworld.layouts import Items
from tinyworld.questions import Question, absent_descriptions, ask, descriptions
from tinyworld.scenes import LETTERS, Scene, render


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


def _answer_boxes(scene: Scene, question: Question) -> list[list[int]]:
    return [list(box) for cell in question.cells if (box := scene.boxes[cell]) is not None]


def _asked(
    name: str, families: tuple[str, ...], layout: str, wrong: int, **options: Any
) -> Iterator[tuple[Scene, Question, random.Random]]:
    """Endless (scene, question, rng) with at least `wrong` wrong answers each; test handwriting, seeded by `name`."""
    index = 0
    while True:
        rng = random.Random(f"tinyworld test {name} {index}")
        index += 1
        items: Items = layouts.LAYOUTS[layout](rng, **options)
        questions = [q for q in ask(items, rng, families) if len(q.wrong) >= wrong]
        if questions:
            yield render(items, rng, "test"), questions[0], rng


MMBENCH_CATEGORIES = {
    "colour": ("attribute_recognition", "finegrained_perception (instance-level)"),
    "shape": ("object_localization", "finegrained_perception (instance-level)"),
    "at": ("image_scene", "coarse_perception"),
    "where": ("spatial_relationship", "finegrained_perception (cross-instance)"),
    "count": ("structuralized_imagetext_understanding", "logic_reasoning"),
    "size": ("physical_property_reasoning", "attribute_reasoning"),
}


def mmbench(questions: int = 100) -> DatasetFolder:
    features = Features(
        {"index": Value("int64")}
        | dict.fromkeys(("question", "hint", "answer", "A", "B", "C", "D", "category"), TEXT)
        | {"image": Image()}
        | dict.fromkeys(("source", "L2-category", "comment", "split"), TEXT)
    )
    rows: Rows = []
    boxes = {}
    families = list(MMBENCH_CATEGORIES)
    streams = {name: _asked(f"mmbench {name}", (name,), "objects", 1) for name in families}
    for number in range(questions):
        family = families[number % len(families)]
        scene, question, rng = next(streams[family])
        choice = Choice.of(question.text, question.answer, question.wrong, rng)
        category, group = MMBENCH_CATEGORIES[family]
        for shift in range(len(choice.options)):
            options = [*choice.options[shift:], *choice.options[:shift]]
            index = number + shift * ROTATION
            lettered = dict(zip("ABCD", [*options, *["nan"] * (4 - len(options))], strict=True))
            rows.append(
                {
                    "index": index,
                    "question": question.text,
                    "hint": "nan",
                    "answer": LETTERS[options.index(question.answer)],
                }
                | lettered
                | {"category": category, "image": scene.image, "source": "tinyworld", "L2-category": group}
                | {"comment": "nan", "split": "dev"}
            )
            boxes[str(index)] = _answer_boxes(scene, question)
    return DatasetFolder("lmms-lab-encoder/MMBench", features, {"en": {"dev": rows}}, boxes)


MMSTAR_FAMILIES = {
    # category: {group: (family of questions, layout)}
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


def mmstar(each: int = 10) -> DatasetFolder:
    meta = {"source": TEXT, "split": TEXT, "image_path": TEXT}
    features = Features(
        {
            "index": Value("int64"),
            "question": TEXT,
            "image": Image(),
            "answer": TEXT,
            "category": TEXT,
            "l2_category": TEXT,
        }
        | {"meta_info": meta}
    )
    rows: Rows = []
    boxes = {}
    for category, groups in MMSTAR_FAMILIES.items():
        for group, (family, layout) in groups.items():
            stream = _asked(f"mmstar {group}", (family,), layout, 3)
            for _ in range(each):
                scene, question, rng = next(stream)
                choice = Choice.of(question.text, question.answer, question.wrong, rng)
                index = len(rows)
                origin = {"source": "tinyworld", "split": "val", "image_path": f"images/{index}.png"}
                rows.append(
                    {"index": index, "question": choice.in_line(), "image": scene.image, "answer": choice.letter}
                    | {"category": category, "l2_category": group, "meta_info": origin}
                )
                boxes[str(index)] = _answer_boxes(scene, question)
    return DatasetFolder("Lin-Chen/MMStar", features, {"val": {"val": rows}}, boxes)


def pope(images: int = 20) -> DatasetFolder:
    names = ("id", "question_id", "question", "answer", "image_source")
    features = Features(dict.fromkeys(names, TEXT) | {"image": Image(), "category": TEXT})
    rows: Rows = []
    boxes = {}
    for number in range(images):
        rng = random.Random(f"tinyworld test pope {number}")
        items = layouts.objects(rng, count=5)
        scene = render(items, rng, "test")
        shown = {text: cell for cell, item in enumerate(items) if item is not None for text in descriptions(item)}
        present = rng.sample(sorted(shown), 9)
        absent = absent_descriptions(items, rng, 9)
        for pair, (yes, no) in enumerate(zip(present, absent, strict=True)):
            for text, answer in ((yes, "yes"), (no, "no")):
                index = str(len(rows))
                rows.append(
                    {
                        "id": index,
                        "question_id": index,
                        "question": f"Is there a {text} in the image?",
                        "answer": answer,
                    }
                    | {"image_source": f"tinyworld_{number:06d}", "image": scene.image}
                    | {"category": ("random", "popular", "adversarial")[pair // 3]}
                )
                box = scene.boxes[shown[text]] if answer == "yes" else None
                boxes[index] = [list(box)] if box else []
    return DatasetFolder("lmms-lab-encoder/POPE", features, {"default": {"test": rows}}, boxes)


SEED_KINDS = {
    "chart": (("at",), "form"),
    "map": (("where", "at"), "objects"),
    "web": (("at", "where"), "sign"),
}


def seedbench_2_plus(questions: int = 180) -> DatasetFolder:
    names = (
        "question_id",
        "question",
        "choice_A",
        "choice_B",
        "choice_C",
        "choice_D",
        "answer",
        "question_image_type",
    )
    features = Features(dict.fromkeys(names, TEXT) | {"image": Image()})
    streams = {kind: _asked(f"seed {kind}", families, layout, 3) for kind, (families, layout) in SEED_KINDS.items()}
    rows: Rows = []
    boxes = {}
    for number in range(questions):
        kind = list(SEED_KINDS)[number % 3]
        scene, question, rng = next(streams[kind])
        choice = Choice.of(question.text, question.answer, question.wrong, rng)
        lettered = {f"choice_{LETTERS[i]}": option for i, option in enumerate(choice.options)}
        rows.append(
            {"question_id": str(number), "question": question.text, **lettered, "answer": choice.letter}
            | {"question_image_type": kind, "image": scene.image}
        )
        boxes[str(number)] = _answer_boxes(scene, question)
    return DatasetFolder("doolayer/SEED-Bench-2-Plus", features, {"default": {"test": rows}}, boxes)


OCR_TYPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    # question_type: (source dataset, layout, its options)
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


def ocrbench(each: int = 100) -> DatasetFolder:
    features = Features(
        {"dataset": TEXT, "question": TEXT, "question_type": TEXT, "answer": List(TEXT), "image": Image()}
    )
    rows: Rows = []
    boxes = {}
    for kind, (source, layout, options) in OCR_TYPES.items():
        stream = _asked(f"ocrbench {kind}", ("read", "field"), layout, 0, **options)
        for _ in range(each):
            scene, question, _ = next(stream)
            boxes[str(len(rows))] = _answer_boxes(scene, question)
            rows.append(
                {"dataset": source, "question": question.text, "question_type": kind, "answer": [question.answer]}
                | {"image": scene.image}
            )
    return DatasetFolder("echo840/OCRBench", features, {"default": {"test": rows}}, boxes)


SCIENCE_FAMILIES = ("colour", "shape", "at", "where", "count")


def scienceqa(questions: int = 240) -> DatasetFolder:
    names = ("hint", "task", "grade", "subject", "topic", "category", "skill", "lecture", "solution")
    features = Features(
        {"image": Image(), "question": TEXT, "choices": List(TEXT), "answer": Value("int8")}
        | dict.fromkeys(names, TEXT)
    )
    stream = _asked("scienceqa", SCIENCE_FAMILIES, "objects", 3)
    rows: Rows = []
    boxes = {}
    constant = dict.fromkeys(names, "") | {
        "task": "closed choice",
        "grade": "grade2",
        "subject": "natural science",
    }
    for number in range(questions):
        if number % 2 == 0:
            scene, question, rng = next(stream)
            choice = Choice.of(question.text, question.answer, question.wrong, rng)
            image = scene.image
            boxes[str(number)] = _answer_boxes(scene, question)
        else:
            rng = random.Random(f"tinyworld test scienceqa facts {number}")
            fact = rng.choice(FACTS)
            choice = Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng)
            image = None
        rows.append(
            {"image": image, "question": choice.question, "choices": list(choice.options)}
            | {"answer": LETTERS.index(choice.letter), **constant}
        )
    return DatasetFolder("lmms-lab-encoder/ScienceQA", features, {"ScienceQA-FULL": {"test": rows}}, boxes)


def ai2d(questions: int = 200) -> DatasetFolder:
    features = Features({"question": TEXT, "options": List(TEXT), "answer": TEXT, "image": Image()})
    stream = _asked("ai2d", ("at", "colour", "shape"), "objects", 3)
    rows: Rows = []
    boxes = {}
    for number in range(questions):
        scene, question, rng = next(stream)
        choice = Choice.of(question.text, question.answer, question.wrong, rng)
        answer = str(LETTERS.index(choice.letter))
        rows.append(
            {"question": question.text, "options": list(choice.options), "answer": answer, "image": scene.image}
        )
        boxes[str(number)] = _answer_boxes(scene, question)
    return DatasetFolder("lmms-lab-encoder/ai2d", features, {"default": {"test": rows}}, boxes)


def _story(fact: Fact, number: int) -> dict[str, Any]:
    rng = random.Random(f"tinyworld test hellaswag {number}")
    values = [fact.value, *fact.wrong]
    rng.shuffle(values)
    beginning = fact.fill(fact.kind.beginning)
    return {
        "ind": number,
        "activity_label": fact.kind.heading,
        "ctx_a": beginning,
        "ctx_b": "it",
        "ctx": f"{beginning} it",
        "endings": [fact.kind.ending.format(value=value) for value in values],
        "source_id": f"tinyworld~{number}",
        "split": "val",
        "split_type": "indomain",
        "label": str(values.index(fact.value)),
    }


def hellaswag() -> DatasetFolder:
    names = ("activity_label", "ctx_a", "ctx_b", "ctx", "source_id", "split", "split_type", "label")
    features = Features({"ind": Value("int32"), **dict.fromkeys(names, TEXT), "endings": List(TEXT)})
    validation = [_story(fact, number) for number, fact in enumerate(fact for fact in FACTS if fact in STORY_FACTS)]
    train = [
        _story(fact, number) | {"split": "train"}
        for number, fact in enumerate(f for f in FACTS if f not in STORY_FACTS)
    ]
    return DatasetFolder("Rowan/hellaswag", features, {"default": {"train": train[:50], "validation": validation}})


def mmlu() -> DatasetFolder:
    features = Features(
        {"question": TEXT, "subject": TEXT, "choices": List(TEXT), "answer": ClassLabel(names=list("ABCD"))}
    )
    configs: dict[str, dict[str, Rows]] = {}
    for animal, subject in zip(ANIMALS, MMLU_SUBJECTS, strict=True):
        splits: dict[str, Rows] = {"test": [], "dev": []}
        for fact in (fact for fact in FACTS if fact.animal == animal):
            rng = random.Random(f"tinyworld test mmlu {animal} {fact.attribute}")
            choice = Choice.of(fact.fill(fact.kind.question), fact.value, fact.wrong, rng)
            row = {"question": choice.question, "subject": subject, "choices": list(choice.options)}
            splits["test" if fact in EXAM_FACTS else "dev"].append(row | {"answer": LETTERS.index(choice.letter)})
        configs[subject] = splits
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


def write_benchmarks(root: Path) -> None:
    """Write the nine folders and boxes.json: {repository: {row id: [[left, top, right, bottom], ...]}} in pixels."""
    boxes = {}
    for make in track(BENCHMARKS, description="benchmark folders"):
        benchmark = make()
        write_benchmark(root, benchmark)
        if benchmark.boxes:
            boxes[benchmark.repository] = benchmark.boxes
    (root / "boxes.json").write_text(json.dumps(boxes), encoding="utf-8")
