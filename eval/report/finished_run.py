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
from eval.plan.models import Model
from eval.tables.table4 import ScoreEntry, Table4, table_lines
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


TITLES = BENCHMARK_TITLES | {"avg": "mean of the nine"}
ANSWER = "answer.md"  # of a fine-tuning run
TOY = "tinyworld"  # the backbone whose results are toy results


def read_scores(run: Path) -> list[ScoreEntry]:
    """The rows of the run's scores.json.

    Raises:
        UserError: there is no scores.json, or it comes from a trial with --limit.
    """
    rows = read_json(run / "scores.json")
    if rows is None:
        raise UserError(f"no {run / 'scores.json'}; evaluate the run first (python -m eval.suite)")
    limits = {row["limit"] for row in rows if "limit" in row}
    if limits:
        raise UserError(f"{run} holds a trial with --limit {limits.pop()}, not scores; evaluate it without --limit")
    return rows


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
        return cls(folder, read_scores(folder), read_json(folder / "run.json") or {})

    @cached_property
    def table(self) -> Table4:
        return Table4.of(self.rows, self.record)

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
        single = [row for row in self._measured if not row.get("seeds")]
        return {
            name: {row["benchmark"]: row for row in single if _key(row) == key} for key, name in self._names.items()
        }

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

    @property
    def is_official(self) -> bool:
        """Whether its scores can be those of the official data."""
        return is_official([row for line in self.lines for row in line.cells.values()], self.data or self.folder)

    @cached_property
    def baselines(self) -> dict[str, str]:
        """Backbone -> the method that its others were compared with; without those where nothing was compared."""
        methods = dict.fromkeys((line.backbone, line.method) for line in [*self.lines, *self.single_seeds])
        compared = {(row["backbone"], row["method"]) for row in self._measured if row["delta"] is not None}
        baselines: dict[str, str] = {}
        for backbone, method in methods:
            if (backbone, method) not in compared and backbone in {backbone for backbone, _ in compared}:
                baselines.setdefault(backbone, method)
        return baselines

    @property
    def answer(self) -> list[str]:
        """The lines of a fine-tuning run's answer; none of another run."""
        path = self.folder / ANSWER
        return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []

    @cached_property
    def checkpoints(self) -> dict[str, Path | None]:
        """Model -> its checkpoint, if that still exists."""
        return {model.name: self.checkpoint(model.name) for model in self.models}

    def checkpoint(self, name: str) -> Path | None:
        """A model's checkpoint, if it still exists: where it was evaluated, or its last stage in the run's folder."""
        recorded = self.record.get("models", {}).get(name, {}).get("path")
        return _first_folder(recorded, self.folder / "checkpoints" / name / "stage2")

    @cached_property
    def data(self) -> Path | None:
        """The data root, if it still exists: the one that was evaluated, or the one inside the run."""
        return _first_folder(self.record.get("data", {}).get("root"), self.folder / "data" / "mirrors")


def _first_folder(recorded: str | None, inside: Path) -> Path | None:
    candidates = [*([Path(recorded)] if recorded else []), inside]
    return next((folder for folder in candidates if folder.is_dir()), None)


def _key(row: ScoreEntry) -> tuple[str, str, int | None]:
    return row["backbone"], row["method"], row["seed"]


def is_official(cells: list[ScoreEntry], root: Path) -> bool:
    """Whether the scores can be those of the official data: as many questions, and not tinyworld's data root."""
    measured = [cell for cell in cells if cell["status"] == "ok" and cell["benchmark"] in BY_KEY]
    complete = all(cell["n"] == BY_KEY[cell["benchmark"]].num_questions for cell in measured)
    return bool(measured) and complete and not (root / "boxes.json").exists()


def without_paths(text: str) -> str:
    """Shorten every path in an error message to its last part."""
    return re.sub(
        r"(?<![\w:/])(?:~|[A-Za-z]:)?(?:/[^\s/'\",;:()\[\]]+){2,}/?", lambda path: f"…/{Path(path[0]).name}", text
    )


def probability(value: float) -> str:
    """A p-value as text: `p < 0.001`, `p = 0.012`."""
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"
