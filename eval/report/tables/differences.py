"""The figure beside Table 4: each arm's paired difference from the baseline arm, with intervals."""

from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes

from eval.data.benchmarks import BENCHMARKS
from eval.run.files import write_text
from eval.run.svg import svg_axes


TITLES = {benchmark.key: benchmark.title for benchmark in BENCHMARKS} | {"avg": "Avg"}


def draw_differences(rows: list[dict[str, Any]], path: Path) -> None:
    """Write an SVG, the same bytes for the same rows; an arm without any difference is left out."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["delta"] is not None and row["benchmark"] in TITLES:
            label = row["method"] if row["seed"] is None else f"{row['method']}, seed {row['seed']}"
            arms.setdefault(label, []).append(row)
    with svg_axes("table4", (9, 4)) as (axes, svg):
        plot_differences(axes[0, 0], arms, {})
    write_text(path, svg.getvalue())


def plot_differences(axes: Axes, arms: dict[str, list[dict[str, Any]]], colours: dict[str, str]) -> None:
    """Every difference of each arm with its interval, by benchmark; arms without a colour get matplotlib's next."""
    keys = list(TITLES)
    for index, (label, cells) in enumerate(arms.items()):
        shift = 0.6 * ((index + 0.5) / len(arms) - 0.5)
        places = [keys.index(cell["benchmark"]) + shift for cell in cells]
        values = [cell["delta"] for cell in cells]
        # An interval of no width can lie beside the difference by the last bit.
        below = [max(0.0, cell["delta"] - cell["delta_ci95"][0]) for cell in cells]
        above = [max(0.0, cell["delta_ci95"][1] - cell["delta"]) for cell in cells]
        axes.errorbar(places, values, yerr=[below, above], fmt="o", capsize=3, label=label, color=colours.get(label))
    axes.axhline(0, color=matplotlib.rcParams["axes.edgecolor"], linewidth=0.8)
    axes.set_xticks(range(len(keys)), list(TITLES.values()), rotation=30, ha="right")
    axes.set_ylabel("points over the baseline arm, 95 % interval")
    if arms:
        axes.legend()
