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
from eval.plan.models import Model, find_checkpoint, find_data_root, read_record
from eval.tables.table4 import ScoreEntry, is_significant, read_scores, table_lines


TITLES = BENCHMARK_TITLES | {"avg": "mean of the nine"}
TOY = "tinyworld"  # the backbone whose results are toy results


@dataclass(frozen=True)
class Line:
    """A line of the tables: a checkpoint, or the mean over the `seeds` of a method. `cells`: benchmark -> its row."""

    name: str
    backbone: str
    method: str
    seeds: tuple[int, ...]
    cells: dict[str, ScoreEntry]

    @property
    def answered(self) -> list[str]:
        """Benchmarks with a score, in the order of the table."""
        return [key for key in BY_KEY if key in self.cells and self.cells[key]["status"] == "ok"]


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
        return cls(folder, read_scores(folder), read_record(folder))

    @cached_property
    def models(self) -> list[Model]:
        """The checkpoints in the order of the table, each seed one. Their names are those of the run's folders."""
        named = {
            (model["backbone"], model["method"], model["seed"]): name
            for name, model in self.record.get("models", {}).items()
        }
        keys = dict.fromkeys(_key(row) for row in self._measured if not row.get("seeds"))
        seeds = {seed for _, _, seed in keys}
        models = []
        for backbone, method, seed in keys:
            name = method if seed is None or len(seeds) == 1 else f"{method}-seed{seed}"
            models.append(Model(named.get((backbone, method, seed), name), backbone, method, seed))
        return models

    @property
    def unscored(self) -> list[str]:
        """Models in the record but not in scores.json: their evaluation did not finish."""
        scored = {model.name for model in self.models}
        return [name for name in self.record.get("models", {}) if name not in scored]

    @cached_property
    def cells(self) -> dict[str, dict[str, ScoreEntry]]:
        """Checkpoint -> benchmark -> its own row."""
        names = {(model.backbone, model.method, model.seed): model.name for model in self.models}
        table: dict[str, dict[str, ScoreEntry]] = {model.name: {} for model in self.models}
        for row in self._measured:
            if not row.get("seeds"):
                table[names[_key(row)]][row["benchmark"]] = row
        return table

    @cached_property
    def _measured(self) -> list[ScoreEntry]:
        """This run's rows, without paths of this machine."""
        own = [row for row in self.rows if row["source"] == "measured"]
        return [row | {"reason": row["reason"] and without_paths(row["reason"])} for row in own]

    @cached_property
    def lines(self) -> list[Line]:
        """What the tables show: the mean over seeds of methods with several, all other checkpoints."""
        names = {(model.backbone, model.method, model.seed): model.name for model in self.models}
        found = []
        for _, cells in table_lines(self._measured):
            row = next(iter(cells.values()))
            seeds = tuple(row.get("seeds", ()))
            name = f"{row['method']}, {len(seeds)} seeds" if seeds else names[_key(row)]
            found.append(Line(name, row["backbone"], row["method"], seeds, cells))
        return found

    @cached_property
    def single_seeds(self) -> list[Line]:
        """The checkpoints that `lines` shows only in a mean."""
        shown = {line.name for line in self.lines}
        return [
            Line(model.name, model.backbone, model.method, (), self.cells[model.name])
            for model in self.models
            if model.name not in shown
        ]

    @property
    def has_scores(self) -> bool:
        """Whether any benchmark has one; fine-tuning may do without."""
        return any(line.answered for line in self.lines)

    @property
    def is_toy(self) -> bool:
        return any(model.backbone == TOY for model in self.models)

    @cached_property
    def baselines(self) -> dict[str, str]:
        """Backbone -> the method that its others were compared with; without those where nothing was compared."""
        found: dict[str, str] = {}
        for backbone in dict.fromkeys(line.backbone for line in self.lines):
            own = [line for line in [*self.lines, *self.single_seeds] if line.backbone == backbone]
            compared = {line.method for line in own if any(row["delta"] is not None for row in line.cells.values())}
            others = [line.method for line in own if line.method not in compared]
            if compared and others:
                found[backbone] = others[0]
        return found

    def weights(self, name: str) -> str | None:
        """sha256 of the checkpoint that was evaluated."""
        return self.record.get("models", {}).get(name, {}).get("sha256")

    def checkpoint(self, name: str) -> Path | None:
        """The model's checkpoint, if it still exists."""
        return find_checkpoint(self.folder, self.record, name)

    def data(self) -> Path | None:
        """The data root, if it still exists."""
        return find_data_root(self.folder, self.record)

    def answered(self, name: str) -> list[str]:
        """Benchmarks for which the model has a score, in the order of the table."""
        cells = self.cells[name]
        return [key for key in BY_KEY if key in cells and cells[key]["status"] == "ok"]


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
