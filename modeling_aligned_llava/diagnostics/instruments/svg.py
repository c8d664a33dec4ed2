"""Figures as SVG text, with matplotlib's axes to draw on."""

import io
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure  # without pyplot, whose state all threads and notebooks share
from matplotlib.ticker import LogFormatter

from modeling_aligned_llava.loading.files import write_text


@contextmanager
def svg_axes(
    name: str, size: tuple[float, float], rows: int = 1, columns: int = 1, style: dict[Any, Any] | None = None
) -> Iterator[tuple[Any, io.StringIO]]:
    """Axes [rows, columns] to draw on, and the text that holds the SVG once the `with` block has ended.

    The same drawing gives the same bytes.

    Args:
        name: seeds the ids of the elements.
        size: width and height in inches.
        style: matplotlib's rcParams for this figure.
    """
    with matplotlib.rc_context({**(style or {}), "svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=size, layout="constrained")
        text = io.StringIO()
        yield figure.subplots(rows, columns, squeeze=False), text
        figure.savefig(text, format="svg", metadata={"Date": None})


@contextmanager
def svg_file(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Axes [rows, columns] to draw on; the file is written when the `with` block ends."""
    with svg_axes(path.stem, size, rows, columns) as (axes, svg):
        yield axes
    write_text(path, svg.getvalue())


def draw_curve(
    axes: Axes,
    x: Sequence[float],
    means: Iterable[float | None],
    intervals: Iterable[Sequence[float | None]] | None,
    alpha: float = 0.25,
    **style: Any,
) -> None:
    """A curve through the means [n], with its intervals [n, 2] shaded.

    Values that JSON cannot hold, such as the cosine of a zero token, are None and leave a gap.
    """
    (line,) = axes.plot(x, _gaps(means), marker="o", markersize=3, **style)
    if intervals:
        low, high = zip(*intervals, strict=True)
        axes.fill_between(x, _gaps(low), _gaps(high), color=line.get_color(), alpha=alpha, linewidth=0)


def log_scale(axes: Axes) -> None:
    """A logarithmic y axis with numbers that are read at once, not powers of ten."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(LogFormatter())
    axes.yaxis.set_minor_formatter(LogFormatter())


def _gaps(values: Iterable[float | None]) -> list[float]:
    return [math.nan if value is None else value for value in values]
