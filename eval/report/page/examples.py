"""Example questions with each model's answer, from the harness's own sample logs.

A hash of their ids chooses the questions. Up to half are questions on which models disagree. Right and wrong are as
the score counted them.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from eval.data.benchmarks import BY_KEY, Benchmark
from eval.report.finished_run import FinishedRun
from eval.report.page.thumbnails import document_image, thumbnail
from eval.scoring.items import group_by_item, sample_lines
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


A_BENCHMARK = 12  # questions of each
DISAGREED = 6  # of these, at most so many with disagreement before those with agreement
LONGEST = 1500  # characters of a question; of longer ones (solved examples come first) the end is shown
LONGEST_ANSWER = 400


@dataclass
class Example:
    """A question, the right answer, and by model its answer and whether that counted as right."""

    benchmark: Benchmark
    id: str
    document: int
    question: str
    target: str
    answers: dict[str, tuple[str, bool]] = field(default_factory=dict)
    image: str | None = None

    @property
    def disagreed(self) -> bool:
        return len({right for _, right in self.answers.values()}) > 1


def examples(run: FinishedRun) -> tuple[list[Example], list[str]]:
    """The questions to show, by benchmark, and notes on how often models disagree and on what is missing."""
    shown, notes = [], []
    for benchmark in BY_KEY.values():
        asked: dict[str, Example] = {}
        for model in run.models:
            if benchmark.key not in run.answered(model.name):
                continue
            read = _answers(run.folder / "harness" / model.name / benchmark.key, benchmark)
            if not read:
                notes.append(f"{benchmark.title}: the sample logs of {model.name} are gone.")
            for example, answer in read:
                asked.setdefault(example.id, example).answers[model.name] = answer
        if not asked:
            continue
        chosen = choose(list(asked.values()))
        models = max(len(example.answers) for example in asked.values())
        if models > 1:
            split = sum(example.disagreed for example in asked.values())
            notes.append(f"{benchmark.title}: models disagree on {split:,} of {len(asked):,} questions.")
        notes += _add_images(run.data(), benchmark, chosen)
        shown += chosen
    return shown, notes


def choose(asked: list[Example]) -> list[Example]:
    """`A_BENCHMARK` of the questions: first those with disagreement, then as many all-wrong as all-right ones."""
    groups: dict[str, list[Example]] = defaultdict(list)
    for example in sorted(asked, key=lambda each: hashlib.sha256(each.id.encode()).hexdigest()):
        agreed = "right" if any(right for _, right in example.answers.values()) else "wrong"
        groups["disagreed" if example.disagreed else agreed].append(example)
    first, rest = groups["disagreed"][:DISAGREED], groups["disagreed"][DISAGREED:]
    right, wrong = groups["right"], groups["wrong"]
    each = (A_BENCHMARK - len(first)) // 2
    mixed = wrong[:each] + right[:each]
    return (first + mixed + rest + wrong[each:] + right[each:])[:A_BENCHMARK]


def _add_images(root: Path | None, benchmark: Benchmark, chosen: list[Example]) -> list[str]:
    """Fill in the images; returns a note if they are not available."""
    if benchmark.harness != "lmms-eval":
        return []
    if root is None:
        return [f"{benchmark.title}: the images are not shown because the data root is gone."]
    try:
        for example in chosen:
            image = document_image(root, benchmark, example.document, example.question)
            example.image = None if image is None else thumbnail(image)
    except UserError as error:
        return [f"{benchmark.title}: not all images are shown ({error})."]
    return []


def _answers(folder: Path, benchmark: Benchmark) -> list[tuple[Example, tuple[str, bool]]]:
    """Every question of a finished task with (answer, whether it is right); empty if its logs are gone."""
    result = read_json(folder / "result.json")
    if result is None:
        return []
    right = dict(zip(result["items"]["id"], result["items"]["correct"], strict=True))
    found = []
    for item, lines in group_by_item(benchmark, sample_lines(folder)).items():
        question, target, answer = benchmark.example(lines)
        if len(question) > LONGEST:
            question = "…" + question[-LONGEST:]
        if len(answer) > LONGEST_ANSWER:
            answer = answer[:LONGEST_ANSWER] + "…"
        example = Example(benchmark, f"{benchmark.key}/{item}", lines[0]["doc_id"], question, target)
        found.append((example, (answer, bool(right[item]))))
    return found
