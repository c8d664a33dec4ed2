"""A small study, and stages whose training has finished, without any training."""

import json
from pathlib import Path
from typing import Any

import yaml

from research.study.grid import Cell
from research.study.records import Records


STUDY: dict[str, Any] = {
    "question": "which rate?",
    "predictions": {"H1": "the higher"},
    "analysis": "t over seeds",
    "seeds": [42, 43, 44],
    "reference": "baseline",
    "settings": {"steps": 0.5},
    "arms": [
        {"methods": ["baseline"], "stages": ["stage1"]},
        {"methods": ["norm"], "stages": ["stage1"], "vary": {"rate": [0.3, 1.0, 3.0]}},
    ],
}


def write_study(folder: Path, name: str = "small", **changes: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**STUDY, **changes}, sort_keys=False))
    return path


def write_stage(folder: Path, loss: float | None, visual: float = 2.0, lift: float = 4.0) -> None:
    """The files that a finished stage leaves; its held-out loss falls to `loss`, or was never finite (None)."""
    folder.mkdir(parents=True)
    held_out = float("nan") if loss is None else loss
    log: list[dict[str, Any]] = [{"step": step, "loss": 2.0 / step} for step in range(1, 9)]
    log += [{"step": 4, "eval_loss": held_out + 1}, {"step": 8, "eval_loss": held_out}]
    gradient = {"grad_norm": 2.0, "clip_factor": 0.5, "parts": {"projector": {"grad_norm": 2.0}}}
    profile = {"tokens": 4, "cosine": [0.5, 0.9]}
    text, visual_tokens = {**profile, "norm": [0.5, 0.5 * lift, 3.0]}, {**profile, "norm": [visual, 2.0, 3.0]}
    probe = {"step": 8, "text": text, "visual": visual_tokens}
    for name, lines in (
        ("log.jsonl", log),
        ("gradients.jsonl", [{"step": 4, **gradient}, {"step": 8, **gradient, "clip_factor": 1.0}]),
        ("probe.jsonl", [{**probe, "step": 0}, probe]),
    ):
        (folder / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    measured = {"text_norm": 0.5, "stream_norm": 2.0, "target_scale": 1.0}
    (folder / "config.json").write_text(json.dumps(measured))
    (folder / "norm_parameters.json").write_text(json.dumps({"gain": None}))
    (folder / "model.safetensors").write_bytes(b"weights")


def record_of(records: Records, cell: Cell) -> dict[str, Any]:
    (found,) = (each for each in records.read() if (each["arm"], each["seed"]) == (cell.arm.label, cell.seed))
    return found


def remove_record(records: Records, cell: Cell) -> None:
    gone = json.dumps(record_of(records, cell)) + "\n"
    records.file.write_text(records.file.read_text().replace(gone, ""))


def result(correct: list[int], cluster: list[str] | None = None) -> dict[str, Any]:
    """A result.json of a benchmark."""
    ids = [f"q{i}" for i in range(len(correct))]
    items = {
        "id": ids,
        "correct": [float(each) for each in correct],
        "stratum": [""] * len(ids),
        "cluster": cluster or ids,
        "subtask": [""] * len(ids),
    }
    return {"score": 100 * sum(correct) / len(correct), "unparseable": 0.0, "items": items}
