"""Curves from the training logs beside the checkpoints: loss, gradient norms, and cosines (paper Fig. 5)."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from matplotlib.axes import Axes

from eval.report.card import stage_folders
from eval.report.finished_run import FinishedRun
from eval.report.page.inline_svg import Drawing, inline_svg, series


POINTS = 300  # per curve; longer logs are thinned evenly
LINES = 12  # per curve in the table of its numbers
PARTS = ("vision", "projector", "norm", "language")
LEDGER = ["model", "part", "gradient norm", "share of its square", "step / weights"]

Log = list[dict[str, Any]]
Curves = dict[str, list[tuple[int, float]]]  # label -> (step, value)


@dataclass
class Stage:
    """The figures of one training stage, its gradient ledger, and how often it was clipped."""

    name: str
    figures: list[Drawing] = field(default_factory=list)
    ledger: list[list[Any]] = field(default_factory=list)
    clipping: list[str] = field(default_factory=list)


def training(run: FinishedRun, colours: dict[str, int]) -> tuple[list[Stage], list[str]]:
    """Every stage with logs from any model, and a note for each model or file without any.

    Args:
        colours: model name -> number of its series.
    """
    notes, stages = [], []
    logs: dict[str, dict[str, dict[str, Log]]] = {}  # stage -> file -> model
    for model in run.models:
        checkpoint = run.checkpoint(model.name)
        found = False
        for folder in stage_folders(checkpoint) if checkpoint else []:
            for name in ("log", "gradients", "probe"):
                path = folder / f"{name}.jsonl"
                if not path.is_file():
                    continue
                try:
                    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
                except ValueError as error:
                    notes.append(f"{model.name}: {folder.name}/{path.name} is damaged ({error}).")
                    continue
                if not lines:
                    notes.append(f"{model.name}: {folder.name}/{path.name} is empty.")
                    continue
                found = True
                logs.setdefault(folder.name, {}).setdefault(name, {})[model.name] = lines
        if not found:
            notes.append(f"{model.name}: there are no training logs beside its checkpoint.")
    for stage in sorted(logs):
        stages.append(_stage(stage, logs[stage], colours))
    return stages, notes


def _stage(name: str, logs: dict[str, dict[str, Log]], colours: dict[str, int]) -> Stage:
    called = name.replace("stage", "stage ")
    stage = Stage(name.replace("stage", "Stage "))
    losses = {
        model: [(x["step"], x["loss"]) for x in log if "loss" in x] for model, log in logs.get("log", {}).items()
    }
    stage.figures += _figure(f"Loss, {called}", f"{name}-loss", losses, colours)
    ledger = logs.get("gradients", {})
    totals = {model: [(line["step"], line["grad_norm"]) for line in log] for model, log in ledger.items()}
    stage.figures += _figure(f"Gradient norm before clipping, {called}", f"{name}-gradient", totals, colours, True)
    for model, log in ledger.items():
        parts = {
            part: [(line["step"], line["parts"][part]["grad_norm"]) for line in log if part in line["parts"]]
            for part in PARTS
        }
        title, own = f"Gradient norm by part, {called}, {model}", {part: i for i, part in enumerate(PARTS)}
        stage.figures += _figure(title, f"{name}-parts-{colours[model]}", parts, own, True)
        stage.ledger += _ledger(model, log)
        clipped = sum(line["clip_factor"] < 1 for line in log) / len(log)
        factor = median(line["clip_factor"] for line in log)
        stage.clipping.append(f"{model}: clipped in {clipped:.0%} of the logged steps, median factor {factor:.2f}.")
    stage.figures += _cosines(name, logs.get("probe", {}), colours)
    return stage


def _ledger(model: str, log: Log) -> list[list[Any]]:
    """Medians over the logged steps, by part of the model."""
    rows = []
    for part in PARTS:
        lines = [line["parts"][part] for line in log if part in line["parts"]]
        if lines:
            values = [[line[k] for line in lines if k in line] for k in ("grad_norm", "share", "update_ratio")]
            rows.append([model, part, *(median(column) if column else None for column in values)])
    return rows


def _cosines(stage: str, probes: dict[str, Log], colours: dict[str, int]) -> list[Drawing]:
    curves, numbers = {}, {}
    for model, log in probes.items():
        for tokens in ("visual", "text"):
            cosines = [(line["step"], line[tokens]["cosine"]) for line in log if tokens in line]
            curves[f"{model}, {tokens}"] = [(step, sum(values) / len(values)) for step, values in cosines]
            numbers[f"{model}, {tokens}"] = colours[model]
    return _figure(
        f"Cosine between layers, mean over layers, {stage.replace('stage', 'stage ')}",
        f"{stage}-cosine",
        curves,
        numbers,
    )


def _figure(
    title: str, name: str, curves: Curves, colours: dict[str, int], logarithmic: bool = False
) -> list[Drawing]:
    curves = {label: points for label, points in curves.items() if points}
    if not curves:
        return []
    rows = [[label, step, value] for label, points in curves.items() for step, value in _thinned(points, LINES)]
    svg = inline_svg(name, f"{title}: {'; '.join(curves)}", _draw(curves, colours, logarithmic))
    return [Drawing(title, svg, ["curve", "step", "value"], rows)]


def _draw(curves: Curves, colours: dict[str, int], logarithmic: bool) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for label, points in curves.items():
            steps, values = zip(*_thinned(points, POINTS), strict=True)
            style = "--" if label.endswith(", text") else "-"
            axes.plot(steps, values, style, color=series(colours[label]), linewidth=1.3, label=label)
        axes.set_xlabel("step", loc="right")
        if logarithmic:
            axes.set_yscale("log")
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.12), ncols=2)

    return draw


def _thinned(points: list[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    """At most `limit` points, evenly spaced, including the first and the last."""
    if len(points) <= limit:
        return points
    return [points[round(i * (len(points) - 1) / (limit - 1))] for i in range(limit)]
