"""Right or wrong, item by item, from the harness's own sample logs, and the score they add up to.

The score is recomputed as the harness defines it and must agree with the harness's number. Intervals and paired tests
are computed from these items.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eval.data import mirror
from eval.data.benchmarks import Benchmark
from eval.data.sample_lines import Line


@dataclass
class Items:
    """Parallel lists, one entry per scored item. `stratum` and `cluster` determine how items are resampled.

    Attributes:
        id: name of the item, the same for every checkpoint.
        correct: 1.0 or 0.0.
        stratum: group within which items are drawn (MM-Star's l2_category, MMLU's subject), else "".
        cluster: items drawn together (questions about one image), else the item's own id.
        subtask: part of the breakdown that the item belongs to; "" without one.
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
    """A finished task.

    Attributes:
        score: the harness's score in points.
        rows: rows scored.
        unparseable: share of answers that the scorer could not read.
        items: right or wrong, item by item.
        further: the benchmark's `further` numbers in points.
        answer_tokens: length of an answer that the stock task asks for; None if it leaves that to the model.
    """

    score: float
    rows: int
    unparseable: float
    items: Items
    further: dict[str, float]
    answer_tokens: int | None


def _subtask(benchmark: Benchmark, root: Path) -> Callable[[Line], str]:
    """Which part of the breakdown a line belongs to."""
    if benchmark.subtasks is None:
        return lambda line: ""
    if benchmark.config == "*":  # the harness runs every configuration as a task of its own
        return lambda line: line["file"].removeprefix(f"{benchmark.task}_")
    names = mirror.subtask_names(root, benchmark)
    return lambda line: names[line["doc_id"]] if names else ""


def _sample_lines(folder: Path) -> list[Line]:
    """All lines of the sample logs under `folder`, each with the name of its (sub)task in `file`."""
    samples: list[Line] = []
    for path in sorted(folder.rglob("*samples_*.jsonl")):
        subtask = re.sub(r"_\d{4}-\d\d-\d\dT.*", "", path.stem.split("samples_", 1)[1])
        with path.open(encoding="utf-8") as lines:
            samples.extend(json.loads(line) | {"file": subtask} for line in lines)
    return samples


def read_result(
    benchmark: Benchmark, folder: Path, expected_rows: int, images: dict[int, str], root: Path, trial: bool = False
) -> TaskResult:
    """Read and check what the harness wrote into `folder`.

    Args:
        expected_rows: rows of the split in the data root, or as many as `--limit` asks for.
        images: scored document -> digest of its image, "" or absent for text-only ones.
        root: the data root, whose rows name their subtasks.
        trial: the rows are the first of the split, and a score that divides by a fixed number of rows is scaled.

    Raises:
        ValueError: there are no results, the number of samples is not that of rows, or the items do not add up to the
            harness's score.
    """
    # The submission files that some scorers write beside the results do not count.
    paths = [path for path in folder.rglob("*results*.json") if path.parent.name != "submissions"]
    if len(paths) != 1:
        raise ValueError(f"the harness wrote {len(paths)} results files, expected one")
    results = json.loads(paths[0].read_text(encoding="utf-8"))
    lines = _sample_lines(folder)
    counted = sum(count["effective"] for count in results["n-samples"].values())
    if counted != expected_rows or len(lines) != expected_rows:
        raise ValueError(f"{expected_rows} rows in the data, the harness saw {counted} and scored {len(lines)}")
    reported = results["results"][benchmark.task]
    score = reported[benchmark.metric] * benchmark.scale
    if benchmark.fixed_rows not in (None, expected_rows):
        if not trial:
            raise ValueError(
                f"the stock {benchmark.title} score divides by {benchmark.fixed_rows}, "
                f"the data has {expected_rows} rows"
            )
        score *= benchmark.fixed_rows / expected_rows

    items, subtask = Items(), _subtask(benchmark, root)
    by_item: dict[str, list[Line]] = defaultdict(list)  # one line, or all rotations of an MMBench question
    for line in lines if benchmark.order is None else sorted(lines, key=benchmark.order):
        by_item[benchmark.item(line)].append(line)
    for name, logged in by_item.items():
        stratum = benchmark.stratum(logged) if benchmark.stratum else ""
        items.add(name, benchmark.correct(logged), stratum, images.get(logged[0]["doc_id"], ""), subtask(logged[0]))
    recomputed = items.score(benchmark.macro)
    if abs(recomputed - score) > 1e-6:
        raise ValueError(f"the harness reports {score:.4f}, its sample log adds up to {recomputed:.4f}")
    unparseable = sum(not benchmark.parses(line) for line in lines) / len(lines)
    further = {name: reported[key] * benchmark.scale for name, key in benchmark.further}
    asked = results["configs"].get(benchmark.task, {}).get("generation_kwargs") or {}
    return TaskResult(score, len(lines), unparseable, items, further, asked.get("max_new_tokens"))
