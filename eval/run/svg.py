"""Figures as SVG text, with matplotlib's axes to draw on."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure  # without pyplot, whose state all threads and notebooks share


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
