"""`gradients MODEL --images DIR | --data ROOT`: gradient norms with no norm, the norm and GWC; does one vanish?"""

import argparse
from pathlib import Path
from typing import Any

from eval.diagnostics.command_line import add_model, add_pictures, readable_pictures
from eval.diagnostics.hooks.loading import load
from eval.diagnostics.measure.gradients import gradients
from eval.diagnostics.output.tables import show
from eval.run.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--out", type=Path, help="folder for gradients.json and a table")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    with readable_pictures(arguments) as sample:
        found = gradients(model, processor, sample, arguments.connector)
        show_gradients(arguments.model, found, arguments.out and arguments.out / "gradients.md")
        if arguments.out is not None:
            write_json(arguments.out / "gradients.json", found)


def show_gradients(model: str, found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    names = list(dict.fromkeys(name for columns in found.values() for name in columns))
    rows = []
    for name in names:
        cells = []
        for columns in found.values():
            cell = columns.get(name)
            text = "-" if cell is None else f"{cell['mean']:.4g}"
            if cell is not None and "over_none" in cell:
                text += (
                    f" (x {cell['over_none']:.3g} [{cell['over_none_ci95'][0]:.3g}, {cell['over_none_ci95'][1]:.3g}])"
                )
            cells.append(text)
        rows.append([name, *cells])
    show(f"{model}: gradients of one batch (geometric mean of the ratio to no norm, 95 %)", ["", *found], rows, out)
