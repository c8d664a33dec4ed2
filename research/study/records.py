"""What is kept of a finished cell: one line of JSON, from which all tables and figures are made; no weights.

A line of `FOLDER/STUDY/records.jsonl` has the settings, date and versions, and for each stage its losses, gradient
norms, norms by layer and the norm's final parameters, as columns of numbers of five digits. Of an evaluated cell it
has every item as 0 or 1; `FOLDER/STUDY/items.json` has what all cells share: strata and clusters of the items.
"""

import hashlib
import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from eval.score.items import Items
from eval.score.results import made_by
from modeling_aligned_llava.diagnostics.attention import ATTENTION_NUMBERS
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import lock_for, read_json, write_json, write_text
from research.study.grid import Cell, Study


MEASURED = ("text_norm", "stream_norm", "target_scale")  # of a checkpoint's config


def held_out_loss(log: Path) -> float:
    """The last held-out loss in a stage's log.jsonl."""
    return next(line["eval_loss"] for line in reversed(read_lines(log)) if "eval_loss" in line)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file of JSON lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def record_cell(
    study: Study,
    cell: Cell,
    settings: dict[str, dict[str, Any]],
    stages: dict[str, Path],
    results: dict[str, Any],
    attention: dict[str, Any] | None,
    seconds: float,
    information: dict[str, list[dict[str, Any]]] | None = None,
) -> dict[str, Any]:
    """The record of a cell whose training and evaluation have finished.

    Args:
        settings: stage -> what the cell changed in the recipe.
        stages: stage -> its folder.
        results: benchmark -> its result.json, empty without evaluation.
        attention: attention.json of `eval.diagnostics attention`, None without evaluation.
        seconds: time since the cell was last started.
        information: stage -> what `research.information` measures by layer; None if it is not asked for.
    """
    return _short(
        {
            "study": study.name,
            "backbone": study.backbone,
            "arm": cell.arm.label,
            "method": cell.arm.method,
            "levels": cell.arm.levels,
            "seed": cell.seed,
            "seconds": seconds,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            **made_by(),
            "stages": {stage: {"settings": settings[stage], **_stage(folder)} for stage, folder in stages.items()},
            "scores": {key: _answers(result) for key, result in results.items()},
            "attention": attention and {"images": attention["images"], **_attention(attention["plain"])},
            **({"information": information} if information else {}),
        }
    )


def _attention(layers: dict[str, dict[str, Any]]) -> dict[str, list[float]]:
    """Number -> its mean over the images by layer; absent if no image has it."""
    columns = list(layers.values())
    return {name: [column[name]["mean"] for column in columns] for name in ATTENTION_NUMBERS if name in columns[0]}


def _stage(folder: Path) -> dict[str, Any]:
    log, gradients = read_lines(folder / "log.jsonl"), read_lines(folder / "gradients.jsonl")
    losses = [line for line in log if "loss" in line]
    held_out = [line for line in log if "eval_loss" in line]
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    parts = sorted({part for line in gradients for part in line["parts"]})
    return {
        "held_out": _columns(held_out, step="step", loss="eval_loss"),
        "loss": _columns(losses, step="step", loss="loss"),
        "gradients": {
            **_columns(gradients, step="step", grad_norm="grad_norm", clip_factor="clip_factor"),
            "parts": {part: [line["parts"].get(part, {}).get("grad_norm") for line in gradients] for part in parts},
        },
        "profile": read_lines(folder / "probe.jsonl"),
        "norm": json.loads((folder / "norm_parameters.json").read_text(encoding="utf-8")),
        "measured": {name: config[name] for name in MEASURED},
        "skipped_steps": len(read_lines(folder / "skipped_steps.jsonl")),
    }


def _columns(lines: list[dict[str, Any]], **names: str) -> dict[str, list[Any]]:
    return {column: [line[name] for line in lines] for column, name in names.items()}


def _answers(result: dict[str, Any]) -> dict[str, Any]:
    items = result["items"]
    return {
        "score": result["score"],
        "unparseable": result["unparseable"],
        "correct": "".join(str(int(each)) for each in items["correct"]),
        "items": _digest(items["id"]),
    }


def _digest(ids: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(ids).encode()).hexdigest()[:16]


def _short(content: Any) -> Any:
    """Numbers of five digits; None for those that JSON does not have (of a run that diverged)."""
    if isinstance(content, dict):
        return {name: _short(value) for name, value in content.items()}
    if isinstance(content, list):
        return [_short(value) for value in content]
    if isinstance(content, float):
        return float(f"{content:.5g}") if math.isfinite(content) else None
    return content


class Records:
    """The records of a study in a folder."""

    def __init__(self, folder: Path, study: str):
        self.folder = folder / study
        self.file = self.folder / "records.jsonl"

    def unfinished(self, cells: list[Cell], settings: dict[str, dict[str, dict[str, Any]]]) -> list[Cell]:
        """The cells without a record.

        Args:
            settings: cell -> stage -> what the cell changes in the recipe.

        Raises:
            UserError: a record is of other settings.
        """
        found = {_key(record): record for record in self.read()}
        left = []
        for cell in cells:
            record = found.get((cell.arm.label, cell.seed))
            if record is None:
                left.append(cell)
            elif {stage: part["settings"] for stage, part in record["stages"].items()} != _short(settings[cell.name]):
                raise UserError(
                    f"{self.file}: {cell.name} was made with other settings: remove its line, or give the arm another "
                    "name"
                )
        return left

    def add(self, record: dict[str, Any], results: dict[str, Any]) -> None:
        """Add the record of a cell, and what its items share with those of all cells; other processes may add theirs.

        Raises:
            UserError: the benchmarks have other items than those of earlier cells.
        """
        with lock_for(self.file):
            self._add_items(results)
            records = {_key(each): each for each in [*self.read(), record]}
            lines = [json.dumps(records[key], allow_nan=False) + "\n" for key in sorted(records)]
            write_text(self.file, "".join(lines))

    def _add_items(self, results: dict[str, Any]) -> None:
        file = self.folder / "items.json"
        shared = read_json(file) or {}
        for key, result in results.items():
            items = result["items"]
            clusters = {name: number for number, name in enumerate(dict.fromkeys(items["cluster"]))}
            own = {
                "items": _digest(items["id"]),
                "stratum": items["stratum"] if any(items["stratum"]) else None,
                "cluster": [clusters[name] for name in items["cluster"]],
            }
            if shared.setdefault(key, own) != own:
                raise UserError(f"{file}: other items of {key} than those of this run; start with another --folder")
        if results:
            write_json(file, shared, indent=None)

    @property
    def decoder(self) -> Path:
        """Scores of the language model before training."""
        return self.folder / "language-model.json"

    def add_decoder(self, results: dict[str, Any]) -> None:
        """Write the text benchmarks of the language model before training."""
        write_json(self.decoder, _short({key: _answers(result) for key, result in results.items()}), indent=None)

    def read(self) -> list[dict[str, Any]]:
        """All records, by arm and seed."""
        return read_lines(self.file)

    def items(self, record: dict[str, Any], benchmark: str) -> Items:
        """The scored items of a cell, for `eval.score`."""
        shared = read_json(self.folder / "items.json")[benchmark]
        own = record["scores"][benchmark]
        count = len(own["correct"])
        return Items(
            id=[str(number) for number in range(count)],
            correct=[float(each) for each in own["correct"]],
            stratum=shared["stratum"] or [""] * count,
            cluster=[str(number) for number in shared["cluster"]],
            subtask=[""] * count,
        )


def _key(record: dict[str, Any]) -> tuple[str, int]:
    return record["arm"], record["seed"]


def final_loss(record: dict[str, Any]) -> float:
    """The last held-out loss of a record's last stage; infinite if it diverged."""
    loss = list(record["stages"].values())[-1]["held_out"]["loss"][-1]
    return math.inf if loss is None else loss
