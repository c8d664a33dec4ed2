"""A finished run as the report sees it: its scores, its record, and where its checkpoints and data lie now.

Only `scores.json` must be there. What else is gone or was moved is looked for, and its absence is said.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eval.data.benchmarks import BY_KEY
from eval.data.benchmarks import TITLES as BENCHMARK_TITLES
from eval.report.tables.table4 import Row, is_significant, read_scores
from eval.run.files import read_json
from eval.scoring.scores import Arm


TITLES = BENCHMARK_TITLES | {"avg": "mean of the nine"}
TOY = "tinyworld"  # the backbone whose results are toy results


@dataclass(frozen=True)
class FinishedRun:
    """`folder` holds the run; `rows` is its scores.json; `record` its run.json, empty if that is gone."""

    folder: Path
    rows: list[Row]
    record: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Raises UserError: there is no scores.json, or it is of a trial."""
        return cls(folder, read_scores(folder), read_json(folder / "run.json") or {})

    @cached_property
    def arms(self) -> list[Arm]:
        """The checkpoints in the order of the table. Their names are those of the run's folders."""
        named = {
            (arm["backbone"], arm["method"], arm["seed"]): name for name, arm in self.record.get("models", {}).items()
        }
        keys = dict.fromkeys(_key(row) for row in self.rows if row["source"] == "measured")
        seeds = {seed for _, _, seed in keys}
        arms = []
        for backbone, method, seed in keys:
            name = method if seed is None or len(seeds) == 1 else f"{method}-seed{seed}"
            arms.append(EvaluatedModel(named.get((backbone, method, seed), name), backbone, method, seed))
        return arms

    @property
    def unscored(self) -> list[str]:
        """Arms that the record names and scores.json does not: their evaluation did not end."""
        return [name for name in self.record.get("models", {}) if name not in {arm.name for arm in self.arms}]

    @cached_property
    def cells(self) -> dict[str, dict[str, Row]]:
        """Arm name -> benchmark -> its measured row, without paths of this machine."""
        names = {(arm.backbone, arm.method, arm.seed): arm.name for arm in self.arms}
        table: dict[str, dict[str, Row]] = {arm.name: {} for arm in self.arms}
        for row in self.rows:
            if row["source"] == "measured":
                reason = row["reason"] and without_paths(row["reason"])
                table[names[_key(row)]][row["benchmark"]] = row | {"reason": reason}
        return table

    @property
    def is_toy(self) -> bool:
        return any(arm.backbone == TOY for arm in self.arms)

    @property
    def baseline(self) -> str | None:
        """The method that others were compared with; None if nothing was."""
        compared = {
            arm.method for arm in self.arms if any(c["delta"] is not None for c in self.cells[arm.name].values())
        }
        others = [arm.method for arm in self.arms if arm.method not in compared]
        return others[0] if compared and others else None

    def weights(self, name: str) -> str | None:
        """sha256 of the checkpoint that was evaluated."""
        return self.record.get("models", {}).get(name, {}).get("sha256")

    def checkpoint(self, name: str) -> Path | None:
        """Where the arm's checkpoint lies: where it was evaluated, or under the run's folder if that was moved."""
        recorded = self.record.get("models", {}).get(name, {}).get("path")
        places = [Path(recorded)] if recorded else []
        places.append(self.folder / "checkpoints" / name / "stage2")
        return next((place for place in places if place.is_dir()), None)

    def data(self) -> Path | None:
        """The data root, if it is still there."""
        recorded = self.record.get("data", {}).get("root")
        places = [Path(recorded)] if recorded else []
        places.append(self.folder / "data" / "mirrors")
        return next((place for place in places if place.is_dir()), None)

    def answered(self, name: str) -> list[str]:
        """Benchmarks for which the arm has a score, in the order of the table."""
        cells = self.cells[name]
        return [key for key in BY_KEY if key in cells and cells[key]["status"] == "ok"]


def _key(row: Row) -> tuple[str, str, int | None]:
    return row["backbone"], row["method"], row["seed"]


def without_paths(text: str) -> str:
    """The words of an exception can hold paths of the machine; of each, the last part is kept."""
    return re.sub(
        r"(?<![\w:/])(?:~|[A-Za-z]:)?(?:/[^\s/'\",;:()\[\]]+){2,}/?", lambda path: f"…/{Path(path[0]).name}", text
    )


def probability(value: float) -> str:
    """A p-value in words: `p < 0.001`, `p = 0.012`."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def direction(cell: Row) -> int:
    """1 or -1 where the arm differs significantly from the baseline, else 0."""
    if cell["delta"] is None or not is_significant(cell):
        return 0
    return 1 if cell["delta"] > 0 else -1
