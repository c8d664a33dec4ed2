"""The figure to Table 4: each model's paired differences from the baseline, with intervals."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from eval.report.tables.table4 import HEADINGS, table_lines
from modeling_aligned_llava.diagnostics.instruments.svg import svg_axes
from modeling_aligned_llava.loading.files import write_text


def draw_differences(rows: list[dict[str, Any]], path: Path) -> None:
    """Write an SVG, the same bytes for the same rows. Models without any difference are left out."""
    compared = {
        label: [row for row in cells.values() if row["delta"] is not None and row["benchmark"] in HEADINGS]
        for label, cells in table_lines(rows)
    }
    models = {label: cells for label, cells in compared.items() if cells}
    with svg_axes("table4", (6, 5)) as (axes, svg):
        plot_differences(axes[0, 0], models, {})
    write_text(path, svg.getvalue())


def plot_differences(axes: Axes, models: dict[str, list[dict[str, Any]]], colours: dict[str, str]) -> None:
    """Every difference of each model and its interval, a row a benchmark. Without a colour, matplotlib chooses one."""
    keys = list(HEADINGS)
    for index, (label, cells) in enumerate(models.items()):
        shift = 0.6 * ((index + 0.5) / len(models) - 0.5)
        positions = [keys.index(cell["benchmark"]) + shift for cell in cells]
        values = [cell["delta"] for cell in cells]
        # An interval of no width can lie beside the difference by the last bit.
        ends = [cell["delta_ci95"] or [cell["delta"]] * 2 for cell in cells]
        below = [max(0.0, value - low) for value, (low, _) in zip(values, ends, strict=True)]
        above = [max(0.0, high - value) for value, (_, high) in zip(values, ends, strict=True)]
        axes.errorbar(
            values, positions, xerr=[below, above], fmt="o", capsize=3, label=label, color=colours.get(label)
        )
    axes.axvline(0, color=matplotlib.rcParams["axes.edgecolor"], linewidth=0.8)
    axes.set_yticks(range(len(keys)), list(HEADINGS.values()))
    axes.invert_yaxis()
    axes.set_xlabel("points over the baseline, 95 % interval")
    if models:
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.12), ncols=2)
