"""Figures as SVG inside the page, with unique ids and with the colours of the page in light and dark mode."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from cycler import cycler
from markupsafe import Markup, escape
from matplotlib.axes import Axes

from modeling_aligned_llava.diagnostics.instruments.svg import svg_axes


INK = "#010203"  # placeholder for the text colour of the page, as each of SERIES is for a variable of its style sheet
SERIES = tuple(f"#0102{number:02x}" for number in range(0x10, 0x18))
RC: dict[Any, Any] = {
    "font.size": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
} | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK)


@dataclass(frozen=True)
class Drawing:
    """A figure of the page with its numbers, for readers who cannot see it."""

    title: str
    svg: Markup
    heads: list[str]
    rows: list[list[Any]]
    note: str = ""


def series(number: int) -> str:
    """The colour of the series with that number; they repeat."""
    return SERIES[number % len(SERIES)]


def inline_svg(name: str, title: str, draw: Callable[[Axes], None], size: tuple[float, float] = (5.2, 3.6)) -> Markup:
    """The SVG of one drawing: the same bytes for the same drawing.

    Args:
        name: unique on the page; its ids begin with it.
        title: read by screen readers.
        size: inches; the page scales it.
    """
    with svg_axes(name, size, style=RC) as (axes, svg):
        draw(axes[0, 0])
    # matplotlib escapes its texts
    return Markup(_in_page(svg.getvalue(), name, str(escape(title))))  # noqa: S704


def _in_page(svg: str, name: str, title: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)  # one for all elements of the page
    svg = re.sub(r"""(\bid="|href="#|url\(#)""", rf"\g<1>{name}-", svg)
    for colour, variable in _colours():
        svg = svg.replace(colour, variable)
    box = re.search(r'viewBox="([^"]*)"', svg)
    assert box is not None
    head = f'<svg viewBox="{box[1]}" role="img" aria-label="{title}">'
    return re.sub(r"<svg\b[^>]*>", lambda _: head, svg, count=1)  # a title may hold backslashes


def _colours() -> Iterator[tuple[str, str]]:
    yield INK, "currentColor"
    for number, colour in enumerate(SERIES):
        yield colour, f"var(--series-{number})"
