"""Example questions with each arm's answer, from the harness's own sample logs.

Which questions are shown is decided by a hash of their ids, half of them where arms disagree if there are as many;
right or wrong is what the score counted.
"""

import hashlib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.data.benchmarks import BENCHMARKS, Benchmark
from eval.report.finished_run import FinishedRun
from eval.report.page.thumbnails import document_image, thumbnail
from eval.run.files import read_json
from eval.scoring.items import sample_rows
from modeling_aligned_llava.errors import UserError


A_BENCHMARK = 12  # questions of each
DISAGREED = 6  # of these, at most, where arms disagree before agreed ones are taken
LONGEST = 1500  # characters of a question; of longer ones, as with five examples in front, the end
LONGEST_ANSWER = 400


@dataclass
class Example:
    """A question, the right answer, and by arm its answer and whether that counted as right."""

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
    """The questions shown, by benchmark, and sentences: how many were disagreed on, and what is missing."""
    shown, notes = [], []
    for benchmark in BENCHMARKS:
        asked: dict[str, Example] = {}
        for arm in run.arms:
            if benchmark.key not in run.answered(arm.name):
                continue
            read = _answers(run.folder / "harness" / arm.name / benchmark.key, benchmark)
            if not read:
                notes.append(f"{benchmark.title}: the sample logs of {arm.name} are gone.")
            for example, answer in read:
                asked.setdefault(example.id, example).answers[arm.name] = answer
        if not asked:
            continue
        chosen = choose(list(asked.values()))
        arms = max(len(example.answers) for example in asked.values())
        if arms > 1:
            split = sum(example.disagreed for example in asked.values())
            notes.append(f"{benchmark.title}: arms disagree on {split:,} of {len(asked):,} questions.")
        notes += _add_images(run.data(), benchmark, chosen)
        shown += chosen
    return shown, notes


def choose(asked: list[Example]) -> list[Example]:
    """`A_BENCHMARK` of the questions: disagreed ones first, then the others, of all right and all wrong in turn."""
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
    """Fill in the images; a sentence if they cannot be had."""
    if benchmark.harness != "lmms-eval":
        return []
    if root is None:
        return [f"{benchmark.title}: the pictures are not shown, as the data root is gone."]
    try:
        for example in chosen:
            image = document_image(root, benchmark, example.document, example.question)
            example.image = None if image is None else thumbnail(image)
    except UserError as error:
        return [f"{benchmark.title}: not all pictures are shown ({error})."]
    return []


def _answers(folder: Path, benchmark: Benchmark) -> list[tuple[Example, tuple[str, bool]]]:
    """Every question of a finished task, and (the answer, whether it is right); none if its logs are gone."""
    result = read_json(folder / "result.json")
    if result is None:
        return []
    right = dict(zip(result["items"]["id"], result["items"]["correct"], strict=True))
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in sample_rows(folder):
        groups[_item(row, benchmark)].append(row)
    found = []
    for item, rows in groups.items():
        question, target, answer = _likelihoods(rows[0]) if "doc" in rows[0] else _generated(rows, benchmark)
        if len(question) > LONGEST:
            question = "…" + question[-LONGEST:]
        if len(answer) > LONGEST_ANSWER:
            answer = answer[:LONGEST_ANSWER] + "…"
        example = Example(benchmark, f"{benchmark.key}/{item}", rows[0]["doc_id"], question, target)
        found.append((example, (answer, bool(right[item]))))
    return found


def _item(row: dict[str, Any], benchmark: Benchmark) -> str:
    """The id of a row's item in result.json: MMBench scores a question with all rotations of its options."""
    if benchmark.key == "mmbench":
        return str(row["gpt_eval_score"]["index"] % 1_000_000)
    return f"{row['file']}/{row['doc_id']}"


def _generated(rows: list[dict[str, Any]], benchmark: Benchmark) -> tuple[str, str, str]:
    """Question, right answer and the model's; of several rotations, the first one's question and all answers."""
    if benchmark.key == "mmbench":
        rows.sort(key=lambda row: row["gpt_eval_score"]["index"])
    if benchmark.key == "ocrbench":
        return rows[0]["input"], " or ".join(rows[0]["ocrbench_accuracy"]["ground_truth"]), rows[0]["filtered_resps"]
    target, answer = (" / ".join(str(row[name]) for row in rows) for name in ("target", "filtered_resps"))
    return rows[0]["input"], target, answer


def _likelihoods(row: dict[str, Any]) -> tuple[str, str, str]:
    """Question, right choice and the likeliest one; HellaSwag's endings by their likelihood a character, as scored."""
    document = row["doc"]
    question = row["arguments"]["gen_args_0"]["arg_0"]
    scores = [float(response[0]) for response in row["filtered_resps"]]
    if "acc_norm" in row:
        scores = [score / len(choice) for score, choice in zip(scores, document["choices"], strict=True)]
        question += "".join(f"\n- {choice}" for choice in document["choices"])
        names = document["choices"]
    else:
        names = [f"{letter}. {choice}" for letter, choice in zip("ABCDE", document["choices"], strict=False)]
    return question, names[int(row["target"])], names[scores.index(max(scores))]
