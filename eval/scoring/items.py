"""Right or wrong, item by item, read from the harness's own sample logs, and the score they add up to.

The score is recomputed as the harness defines it (MMBench: a question counts if all its rotations are right; MM-Star:
mean over l2_category) and must agree with the harness's number. Intervals and paired tests are made from these items.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from eval.data import mirror
from eval.data.benchmarks import Benchmark


Row = dict[str, Any]


@dataclass
class Items:
    """One entry an item that is scored; `stratum` and `cluster` say how a resample must be drawn.

    Attributes:
        id: names the item, the same for every checkpoint.
        correct: 1.0 or 0.0.
        stratum: group within which items are drawn (MM-Star's l2_category, MMLU's subject), else "".
        cluster: items drawn together (questions about one image), else the item's own id.
        subtask: part of the break-down that the item belongs to; "" where there is none.
    """

    id: list[str] = field(default_factory=list)
    correct: list[float] = field(default_factory=list)
    stratum: list[str] = field(default_factory=list)
    cluster: list[str] = field(default_factory=list)
    subtask: list[str] = field(default_factory=list)

    def add(self, name: str, correct: float, stratum: str = "", cluster: str = "", subtask: str = "") -> None:
        self.id.append(name)
        self.correct.append(float(correct))
        self.stratum.append(stratum)
        self.cluster.append(cluster or name)
        self.subtask.append(subtask)

    def score(self, macro: bool) -> float:
        """Points 0-100: mean over items, or over the means of the strata."""
        groups = defaultdict(list)
        for correct, stratum in zip(self.correct, self.stratum, strict=True):
            groups[stratum if macro else ""].append(correct)
        return 100 * sum(sum(group) / len(group) for group in groups.values()) / len(groups)

    def breakdown(self) -> dict[str, dict[str, float]]:
        """Subtask -> its plain accuracy in points and its number of items; empty without subtasks."""
        groups = defaultdict(list)
        for correct, subtask in zip(self.correct, self.subtask, strict=True):
            groups[subtask].append(correct)
        return {
            name: {"score": 100 * sum(group) / len(group), "n": len(group)}
            for name, group in sorted(groups.items())
            if name
        }


@dataclass
class TaskResult:
    """A finished task: the harness's number in points, how many rows it scored, and the items behind it."""

    score: float
    rows: int
    unparseable: float
    items: Items

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def _mmbench(rows: list[Row], items: Items, subtask: Callable[[Row], str]) -> None:
    """One item a question, right if the stock evaluator finds every rotation of it right."""
    import pandas as pd
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator

    data = pd.DataFrame([row["gpt_eval_score"] for row in rows]).sort_values(by="index")
    data["prediction"] = data["prediction"].astype(str)
    answers = dict(zip(data["index"], data["answer"], strict=True))
    subtasks = {row["gpt_eval_score"]["index"] % 1_000_000: subtask(row) for row in rows}
    for question, rotations in data.groupby(data["index"] % 1_000_000):
        correct = mmbench_evaluator.eval_sub_data(rotations, answers, static_only=True)
        items.add(str(question), correct, subtask=subtasks[question])


def _mmbench_parses(row: Row) -> bool:
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer
    from lmms_eval.tasks.mmbench.en_utils import mmbench_evaluator

    answer = row["gpt_eval_score"]
    return bool(mmbench_evaluator.prefetch_answer(answer) or extract_mcq_answer(answer["prediction"], list("ABCD")))


def _mmstar_parses(row: Row) -> bool:
    from lmms_eval.tasks._task_utils.mcq_extract import extract_mcq_answer

    return bool(extract_mcq_answer(row["filtered_resps"], choices=list("ABCD")))


def _letter_parses(row: Row) -> bool:
    """ScienceQA accepts "A" in either case, or anything that begins with "A."; it has up to five options."""
    return bool(re.match(r"[A-Ea-e]\W*$|[A-E]\.", row["filtered_resps"].strip()))


def _bare_letter_parses(row: Row) -> bool:
    """AI2D drops punctuation on both sides as well: "(A)"."""
    return bool(re.match(r"\W*[A-Ea-e]\W*$|[A-E]\.", row["filtered_resps"].strip()))


def _seed_correct(row: Row) -> float:
    answer = row["seedbench_2_plus_all"]
    return float(answer["pred"].lower().strip() == answer["answer"].lower().strip())


CORRECT: dict[str, Callable[[Row], float]] = {
    "mmstar": lambda row: row["average"]["score"],
    "pope": lambda row: row["pope_accuracy"]["score"],
    "seedbench_2_plus": _seed_correct,
    "ocrbench": lambda row: row["ocrbench_accuracy"]["score"],
    "scienceqa": lambda row: row["exact_match"],
    "ai2d": lambda row: row["exact_match"],
    "hellaswag": lambda row: row["acc_norm"],
    "mmlu": lambda row: row["acc"],
    "hellaswag_acc": lambda row: row["acc"],
    "mmlu_5shot": lambda row: row["acc"],
}
# Whether the scorer could make anything of an answer; one it could not is wrong for its form. Text tasks always parse.
PARSES: dict[str, Callable[[Row], bool]] = {
    "mmbench": _mmbench_parses,
    "mmstar": _mmstar_parses,
    "pope": lambda row: row["pope_accuracy"]["prediction"] in ("yes", "no"),
    "seedbench_2_plus": lambda row: row["seedbench_2_plus_all"]["pred"].upper() in tuple("ABCD"),
    "ocrbench": lambda row: bool(row["filtered_resps"].strip()),
    "scienceqa": _letter_parses,
    "ai2d": _bare_letter_parses,
}
STRATUM: dict[str, Callable[[Row], str]] = {
    "mmstar": lambda row: row["average"]["l2_category"],
    "mmlu": lambda row: row["file"],
    "mmlu_5shot": lambda row: row["file"],
}


def _subtask(benchmark: Benchmark, root: Path) -> Callable[[Row], str]:
    """Which part of the break-down a row belongs to."""
    if benchmark.subtasks is None:
        return lambda row: ""
    if benchmark.config == "*":  # the harness runs every configuration as a task of its own
        return lambda row: row["file"].removeprefix(f"{benchmark.task}_")
    names = mirror.subtask_names(root, benchmark)
    return lambda row: names[row["doc_id"]] if names else ""


def sample_rows(folder: Path) -> list[Row]:
    """All rows of the sample logs under `folder`, each with the name of its (sub)task in `file`."""
    rows: list[Row] = []
    for path in sorted(folder.rglob("*samples_*.jsonl")):
        subtask = re.sub(r"_\d{4}-\d\d-\d\dT.*", "", path.stem.split("samples_", 1)[1])
        with path.open(encoding="utf-8") as lines:
            rows.extend(json.loads(line) | {"file": subtask} for line in lines)
    return rows


def _harness_results(folder: Path) -> dict[str, Any]:
    """The harness's results file; the submission files some scorers write beside it do not count."""
    paths = [path for path in folder.rglob("*results*.json") if path.parent.name != "submissions"]
    if len(paths) != 1:
        raise ValueError(f"the harness left {len(paths)} results files, expected one")
    return json.loads(paths[0].read_text(encoding="utf-8"))


def read_result(
    benchmark: Benchmark, folder: Path, expected_rows: int, images: dict[int, str], root: Path
) -> TaskResult:
    """Read and check what the harness left in `folder`.

    Args:
        expected_rows: rows of the split in the data root, or as many as were asked for.
        images: document -> digest of its image, "" or absent for text-only documents.
        root: the data root, which names each row's subtask.

    Raises:
        ValueError: no results, another number of samples than rows, or items that do not add up to its score.
    """
    results = _harness_results(folder)
    rows = sample_rows(folder)
    counted = sum(count["effective"] for count in results["n-samples"].values())
    if counted != expected_rows or len(rows) != expected_rows:
        raise ValueError(f"{expected_rows} rows in the data, the harness saw {counted} and scored {len(rows)}")
    score = results["results"][benchmark.task][benchmark.metric] * benchmark.scale
    if benchmark.key == "ocrbench" and expected_rows != 1000:
        raise ValueError(f"the stock OCRBench score divides by 1000, the data has {expected_rows} rows")

    items, subtask = Items(), _subtask(benchmark, root)
    if benchmark.key == "mmbench":
        _mmbench(rows, items, subtask)
    else:
        stratum = STRATUM.get(benchmark.key, lambda row: "")
        for row in rows:
            name = f"{row['file']}/{row['doc_id']}"
            items.add(name, CORRECT[benchmark.key](row), stratum(row), images.get(row["doc_id"], ""), subtask(row))
    recomputed = items.score(benchmark.macro)
    if abs(recomputed - score) > 1e-6:
        raise ValueError(f"the harness says {score:.4f}, its sample log adds up to {recomputed:.4f}")
    parses = PARSES.get(benchmark.key, lambda row: True)
    return TaskResult(score, len(rows), sum(not parses(row) for row in rows) / len(rows), items)
