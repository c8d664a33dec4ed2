"""The figures of a study, from its records: held-out loss by arm or level, norms by layer, training curves."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from eval.study.analysis import Record, interval, records_by_arm
from eval.study.grid import Study
from eval.study.law import draw_law
from eval.study.records import Records
from modeling_aligned_llava.diagnostics.output.svg import draw_curve, svg_axes
from modeling_aligned_llava.loading.files import write_text


SIZE = (7.5, 4.5)  # inches


def draw_figures(study: Study, records: Records, found: dict[str, Any]) -> None:
    """Write loss.svg, profile.svg, curves.svg and, of a study of lifts, law.svg beside the records.

    Args:
        found: what `analyse` returns.
    """
    by_arm = records_by_arm(study, records)
    with _figure(records.folder / "loss.svg") as axes:
        axis = swept_axis(found["arms"])
        if axis is None:
            _points(axes, found["arms"])
        else:
            _sweep(axes, found["arms"], axis)
    if "law" in found:
        with _figure(records.folder / "law.svg") as axes:
            draw_law(axes, found["law"])
    with _figure(records.folder / "profile.svg") as axes:
        _profile(axes, by_arm, study.reference)
    with _figure(records.folder / "curves.svg") as axes:
        _curves(axes, by_arm)


@contextmanager
def _figure(path: Path) -> Iterator[Axes]:
    with svg_axes(f"{path.parent.name} {path.stem}", SIZE) as (axes, svg):
        yield axes[0, 0]
    write_text(path, svg.getvalue())


def swept_axis(arms: dict[str, dict[str, Any]]) -> str | None:
    """The axis with at least three levels, all of them numbers; None without one."""
    levels: dict[str, set[str]] = {}
    for arm in arms.values():
        for axis, level in arm["levels"].items():
            levels.setdefault(axis, set()).add(level)
    return next((axis for axis, own in levels.items() if len(own) > 2 and all(map(_is_positive, own))), None)


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _last(arm: dict[str, Any]) -> dict[str, Any]:
    return list(arm["losses"].values())[-1]


def _points(axes: Axes, arms: dict[str, dict[str, Any]]) -> None:
    """One line an arm: mean and interval."""
    for row, arm in enumerate(arms.values()):
        loss = _last(arm)
        if loss["mean"] is not None:
            axes.plot(loss["mean"], row, "o", color="tab:blue")
        if loss["ci95"]:
            axes.plot(loss["ci95"], [row, row], color="tab:blue")
    axes.set(xlabel="held-out loss", yticks=range(len(arms)), yticklabels=list(arms))
    axes.invert_yaxis()


def _sweep(axes: Axes, arms: dict[str, dict[str, Any]], axis: str) -> None:
    """A curve for each method and its other levels; arms without the axis are horizontal lines."""
    curves: dict[str, list[tuple[float, dict[str, Any]]]] = {}
    for label, arm in arms.items():
        if axis in arm["levels"]:
            rest = ", ".join([arm["method"], *(f"{a} {level}" for a, level in arm["levels"].items() if a != axis)])
            curves.setdefault(rest, []).append((float(arm["levels"][axis]), _last(arm)))
        elif _last(arm)["mean"] is not None:
            (line,) = axes.plot([], [], "--", label=label)
            axes.axhline(_last(arm)["mean"], linestyle="--", color=line.get_color())
    for label, points in curves.items():
        points.sort(key=lambda point: point[0])
        losses = [loss for _, loss in points]
        ends = [loss["ci95"] or [None, None] for loss in losses]
        draw_curve(axes, [level for level, _ in points], [loss["mean"] for loss in losses], ends, label=label)
    axes.set(xlabel=axis, ylabel="held-out loss", xscale="log")
    axes.legend(fontsize="small")


def _profile(axes: Axes, by_arm: dict[str, list[Record]], reference: str) -> None:
    """Norm of visual tokens by layer at the end of the last stage, mean over seeds; text of the reference dashed."""

    def norms(own: list[Record], series: str) -> np.ndarray:
        rows = [list(record["stages"].values())[-1]["profile"][-1][series]["norm"] for record in own]
        return np.array(rows, dtype=float).mean(axis=0)

    for label, own in by_arm.items():
        axes.plot(norms(own, "visual"), label=label)
    text = by_arm.get(reference) or next(iter(by_arm.values()))
    axes.plot(norms(text, "text"), "k--", label=f"text, {text[0]['arm']}")
    axes.set(xlabel="layer", ylabel="L2 norm of what enters the layer", yscale="log")
    _legend(axes)


def _curves(axes: Axes, by_arm: dict[str, list[Record]]) -> None:
    """Held-out loss of the last stage by step, mean over seeds and its interval."""
    held_out: Callable[[Record], dict[str, Any]] = lambda record: list(record["stages"].values())[-1]["held_out"]  # noqa: E731
    for label, own in by_arm.items():
        columns = zip(*(held_out(record)["loss"] for record in own), strict=True)
        means = [interval([float("inf") if loss is None else loss for loss in column]) for column in columns]
        ends = [each["ci95"] or [None, None] for each in means]
        draw_curve(axes, held_out(own[0])["step"], [each["mean"] for each in means], ends, 0.15, label=label)
    axes.set(xlabel="step", ylabel="held-out loss", yscale="log")
    _legend(axes)


def _legend(axes: Axes) -> None:
    """Beside the axes, so that it hides no curve; a study of many arms gets several columns."""
    labels = axes.get_legend_handles_labels()[1]
    axes.legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1.0, 0.5), ncols=1 + len(labels) // 24)
