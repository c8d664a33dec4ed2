"""The figure of a study, from its records: held-out loss by level or, where no number is varied, norms by layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from modeling_aligned_llava.diagnostics.instruments.svg import draw_curve, svg_axes
from modeling_aligned_llava.loading.files import write_text
from research.study.analysis import Record, records_by_arm
from research.study.grid import Study
from research.study.law import draw_law
from research.study.records import Records


SIZE = (7.5, 4.5)  # inches


def draw_figures(study: Study, records: Records, found: dict[str, Any]) -> None:
    """Write loss.svg, or profile.svg if no number is varied, and law.svg of a study of lifts, beside the records.

    Args:
        found: what `analyse` returns.
    """
    axis = swept_axis(study)
    with _figure(records.folder / ("loss.svg" if axis else "profile.svg")) as axes:
        if axis:
            _sweep(axes, found["arms"], axis)
        else:
            _profile(axes, records_by_arm(study, records), study.reference)
    if "law" in found:
        with _figure(records.folder / "law.svg") as axes:
            draw_law(axes, found["law"])


@contextmanager
def _figure(path: Path) -> Iterator[Axes]:
    with svg_axes(f"{path.parent.name} {path.stem}", SIZE) as (axes, svg):
        yield axes[0, 0]
    write_text(path, svg.getvalue())


def swept_axis(study: Study) -> str | None:
    """The axis with at least three levels, all of them numbers; None without one."""
    levels: dict[str, set[str]] = {}
    for arm in study.arms:
        for axis, level in arm.levels.items():
            levels.setdefault(axis, set()).add(level)
    return next((axis for axis, own in levels.items() if len(own) > 2 and all(map(_is_positive, own))), None)


def _is_positive(text: str) -> bool:
    try:
        return float(text) > 0
    except ValueError:
        return False


def _last(arm: dict[str, Any]) -> dict[str, Any]:
    return list(arm["losses"].values())[-1]


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
    axes.legend(fontsize="xx-small", loc="center left", bbox_to_anchor=(1.0, 0.5))  # beside the curves
