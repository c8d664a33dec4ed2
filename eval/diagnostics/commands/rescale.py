"""`rescale MODEL --images DIR | --data ROOT`: visual tokens times k at inference, and what follows."""

import argparse
from pathlib import Path
from typing import Any

from eval.diagnostics.command_line import add_model, add_pictures, readable_pictures
from eval.diagnostics.hooks.loading import load
from eval.diagnostics.measure.rescale import NUMBERS, rescale
from eval.diagnostics.output.figures import svg
from eval.diagnostics.output.tables import show
from eval.run.files import write_json


FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--factors", nargs="+", type=float, default=list(FACTORS), metavar="K")
    parser.add_argument("--out", type=Path, help="folder for rescale.json, a table and a figure")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    with readable_pictures(arguments) as sample:
        found = rescale(model, processor, sample, arguments.factors, arguments.connector)
        show_rescale(arguments.model, found, arguments.out and arguments.out / "rescale.md")
        if arguments.out is not None:
            draw_rescale(found, arguments.out / "rescale.svg")
            write_json(arguments.out / "rescale.json", found)


def show_rescale(model: str, found: dict[float, dict[str, Any]], out: Path | None = None) -> None:
    rows = []
    for factor, columns in found.items():
        cells = (columns.get(name) for name in NUMBERS)
        texts = (f"{c['mean']:.4g} [{c['ci95'][0]:.4g}, {c['ci95'][1]:.4g}]" if c else "-" for c in cells)
        rows.append([f"{factor:g}", *texts])
    heads = ["k", *(name.replace("_", " ") for name in NUMBERS)]
    show(f"{model}: visual tokens times k (mean over layers, 95 % over images)", heads, rows, out)


def draw_rescale(found: dict[float, dict[str, Any]], path: Path) -> None:
    """Each number against k."""
    names = [name for name in NUMBERS if all(name in columns for columns in found.values())]
    with svg(path, 1, len(names), (3.2 * len(names), 3)) as axes:
        for axis, name in zip(axes[0], names, strict=True):
            order = sorted(found)
            means = [found[factor][name]["mean"] for factor in order]
            low, high = zip(*(found[factor][name]["ci95"] for factor in order), strict=True)
            axis.plot(order, means, marker="o", markersize=3)
            axis.fill_between(order, low, high, alpha=0.25, linewidth=0)
            axis.set(title=name.replace("_", " "), xscale="log", xlabel="k")
