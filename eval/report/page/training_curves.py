"""Curves from the training logs beside the checkpoints: loss, gradient norms, and cosines (paper Fig. 5)."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from eval.report.card import stage_folders
from eval.report.finished_run import FinishedRun
from eval.report.page.inline_svg import Drawing, inline_svg, series


POINTS = 300  # per curve; longer logs are thinned evenly
LINES = 12  # per curve in the table of its numbers

Log = list[dict[str, Any]]
Curves = dict[str, list[tuple[int, float]]]  # label -> (step, value)


@dataclass
class Stage:
    """The figures of one training stage."""

    name: str
    figures: list[Drawing]


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
    losses, norms = _curves(logs.get("log", {}), "loss"), _curves(logs.get("gradients", {}), "grad_norm")
    called = name.replace("stage", "stage ")
    figures = _figure(f"Loss, {called}", f"{name}-loss", losses, colours)
    figures += _figure(f"Gradient norm before clipping, {called}", f"{name}-gradient", norms, colours, True)
    return Stage(called.capitalize(), figures + _cosines(name, logs.get("probe", {}), colours))


def _curves(logs: dict[str, Log], quantity: str) -> Curves:
    return {model: [(line["step"], line[quantity]) for line in log if quantity in line] for model, log in logs.items()}


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
