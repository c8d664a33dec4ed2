"""A finished run for the report: its scores, its record, and where its checkpoints and data are now.

Only `scores.json` is required. The report names whatever else is missing.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from eval.data.benchmarks import BY_KEY
from eval.data.benchmarks import TITLES as BENCHMARK_TITLES
from eval.report.tables.table4 import ScoreEntry, is_significant, read_scores
from eval.run.files import read_json
from eval.scoring.scores import EvaluatedModel


TITLES = BENCHMARK_TITLES | {"avg": "mean of the nine"}
TOY = "tinyworld"  # the backbone whose results are toy results


@dataclass(frozen=True)
class FinishedRun:
    """`rows` is the run's scores.json; `record` is its run.json, empty if that is gone."""

    folder: Path
    rows: list[ScoreEntry]
    record: dict[str, Any]

    @classmethod
    def read(cls, folder: Path) -> "FinishedRun":
        """Read a run's folder.

        Raises:
            UserError: there is no scores.json, or it comes from a trial.
        """
        return cls(folder, read_scores(folder), read_json(folder / "run.json") or {})

    @cached_property
    def models(self) -> list[EvaluatedModel]:
        """The models in the order of the table. Their names are those of the run's folders."""
        named = {
            (model["backbone"], model["method"], model["seed"]): name
            for name, model in self.record.get("models", {}).items()
        }
        keys = dict.fromkeys(_key(row) for row in self.rows if row["source"] == "measured")
        seeds = {seed for _, _, seed in keys}
        models = []
        for backbone, method, seed in keys:
            name = method if seed is None or len(seeds) == 1 else f"{method}-seed{seed}"
            models.append(EvaluatedModel(named.get((backbone, method, seed), name), backbone, method, seed))
        return models

    @property
    def unscored(self) -> list[str]:
        """Models in the record but not in scores.json: their evaluation did not finish."""
        scored = {model.name for model in self.models}
        return [name for name in self.record.get("models", {}) if name not in scored]

    @cached_property
    def cells(self) -> dict[str, dict[str, ScoreEntry]]:
        """Model name -> benchmark -> its measured row, without paths of this machine."""
        names = {(model.backbone, model.method, model.seed): model.name for model in self.models}
        table: dict[str, dict[str, ScoreEntry]] = {model.name: {} for model in self.models}
        for row in self.rows:
            if row["source"] == "measured":
                reason = row["reason"] and without_paths(row["reason"])
                table[names[_key(row)]][row["benchmark"]] = row | {"reason": reason}
        return table

    @property
    def is_toy(self) -> bool:
        return any(model.backbone == TOY for model in self.models)

    @property
    def baseline(self) -> str | None:
        """The method that the others were compared with; None if nothing was compared."""
        compared = {
            model.method
            for model in self.models
            if any(cell["delta"] is not None for cell in self.cells[model.name].values())
        }
        others = [model.method for model in self.models if model.method not in compared]
        return others[0] if compared and others else None

    def weights(self, name: str) -> str | None:
        """sha256 of the checkpoint that was evaluated."""
        return self.record.get("models", {}).get(name, {}).get("sha256")

    def checkpoint(self, name: str) -> Path | None:
        """The model's checkpoint: where it was evaluated, or in the run's folder if that was moved."""
        recorded = self.record.get("models", {}).get(name, {}).get("path")
        return _first_folder(recorded, self.folder / "checkpoints" / name / "stage2")

    def data(self) -> Path | None:
        """The data root, if it still exists."""
        recorded = self.record.get("data", {}).get("root")
        return _first_folder(recorded, self.folder / "data" / "mirrors")

    def answered(self, name: str) -> list[str]:
        """Benchmarks for which the model has a score, in the order of the table."""
        cells = self.cells[name]
        return [key for key in BY_KEY if key in cells and cells[key]["status"] == "ok"]


def _first_folder(recorded: str | None, inside: Path) -> Path | None:
    """The recorded folder if it exists, else the one inside the run if that does."""
    candidates = [*([Path(recorded)] if recorded else []), inside]
    return next((folder for folder in candidates if folder.is_dir()), None)


def _key(row: ScoreEntry) -> tuple[str, str, int | None]:
    return row["backbone"], row["method"], row["seed"]


def without_paths(text: str) -> str:
    """Shorten every path in an error message to its last part."""
    return re.sub(
        r"(?<![\w:/])(?:~|[A-Za-z]:)?(?:/[^\s/'\",;:()\[\]]+){2,}/?", lambda path: f"…/{Path(path[0]).name}", text
    )


def probability(value: float) -> str:
    """A p-value as text: `p < 0.001`, `p = 0.012`."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


def direction(cell: ScoreEntry) -> int:
    """1 or -1 if the model differs significantly from the baseline, else 0."""
    if cell["delta"] is None or not is_significant(cell):
        return 0
    return 1 if cell["delta"] > 0 else -1
