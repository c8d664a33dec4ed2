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
    def _measured(self) -> list[ScoreEntry]:
        """This run's rows, without paths of this machine."""
        measured = [row for row in self.rows if row["source"] == "measured"]
        return [row | {"reason": row["reason"] and without_paths(row["reason"])} for row in measured]

    @cached_property
    def _names(self) -> dict[tuple[str, str, int | None], str]:
        """Backbone, method and seed of a checkpoint -> its name in the run's folders, in the order of the table."""
        recorded = {
            (model["backbone"], model["method"], model["seed"]): name
            for name, model in self.record.get("models", {}).items()
        }
        keys = dict.fromkeys(_key(row) for row in self._measured if not row.get("seeds"))
        seeds = {seed for _, _, seed in keys}
        return {
            key: recorded.get(key, key[1] if key[2] is None or len(seeds) == 1 else f"{key[1]}-seed{key[2]}")
            for key in keys
        }

    @cached_property
    def models(self) -> list[Model]:
        """The checkpoints in the order of the table, each seed one."""
        return [Model(name, *key) for key, name in self._names.items()]

    @property
    def unscored(self) -> list[str]:
        """Models in the record but not in scores.json: their evaluation did not finish."""
        return [name for name in self.record.get("models", {}) if name not in self._names.values()]

    @cached_property
    def cells(self) -> dict[str, dict[str, ScoreEntry]]:
        """Checkpoint -> benchmark -> its own row."""
        table: dict[str, dict[str, ScoreEntry]] = {name: {} for name in self._names.values()}
        for row in self._measured:
            if not row.get("seeds"):
                table[self._names[_key(row)]][row["benchmark"]] = row
        return table

    @cached_property
    def lines(self) -> list[Line]:
        """What the tables show: the mean over seeds of methods with several, all other checkpoints."""
        lines = []
        for _, cells in table_lines(self._measured):
            row = next(iter(cells.values()))
            seeds = tuple(row.get("seeds", ()))
            name = f"{row['method']}, {len(seeds)} seeds" if seeds else self._names[_key(row)]
            lines.append(Line(name, row["backbone"], row["method"], seeds, cells))
        return lines

    @cached_property
    def single_seeds(self) -> list[Line]:
        """The checkpoints that `lines` shows only in a mean."""
        shown = {line.name for line in self.lines}
        single = [model for model in self.models if model.name not in shown]
        return [Line(model.name, model.backbone, model.method, (), self.cells[model.name]) for model in single]

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
        baselines: dict[str, str] = {}
        for backbone in dict.fromkeys(line.backbone for line in self.lines):
            lines = [line for line in [*self.lines, *self.single_seeds] if line.backbone == backbone]
            compared = {line.method for line in lines if any(row["delta"] is not None for row in line.cells.values())}
            others = [line.method for line in lines if line.method not in compared]
            if compared and others:
                baselines[backbone] = others[0]
        return baselines

    def checkpoint(self, name: str) -> Path | None:
        """The model's checkpoint, if it still exists."""
        return find_checkpoint(self.folder, self.record, name)

    def data(self) -> Path | None:
        """The data root, if it still exists."""
        return find_data_root(self.folder, self.record)


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
