"""`attention MODEL --images DIR | --data ROOT`: where text looks in the image (App. G), as numbers and maps."""

import argparse
from pathlib import Path
from typing import Any

from eval.diagnostics.command_line import add_model, add_pictures, readable_pictures
from eval.diagnostics.hooks.loading import load
from eval.diagnostics.measure.attention import NUMBERS, attention
from eval.diagnostics.output.figures import svg
from eval.diagnostics.output.tables import number, show
from eval.run.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--queries", choices=("text", "last"), default="text", help="tokens that look (default text)")
    parser.add_argument("--out", type=Path, help="folder for attention.json, a table and the maps")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    with readable_pictures(arguments) as sample:
        found = attention(model, processor, sample, arguments.queries, arguments.connector)
        show_attention(arguments.model, found, arguments.out and arguments.out / "attention.md")
        if arguments.out is not None:
            draw_maps(found.pop("maps"), arguments.out / "attention.svg")
            write_json(arguments.out / "attention.json", found)


def show_attention(model: str, found: dict[str, Any], out: Path | None = None) -> None:
    rows = []
    for layer, columns in found["plain"].items():
        cells = [_cell(columns.get(name)) for name in NUMBERS]
        shuffled = found["shuffled"][layer].get("bottom_third")
        rows.append([str(layer), *cells, _cell(shuffled)])
    heads = ["layer", *(name.replace("_", " ") for name in NUMBERS), "bottom third, tokens shuffled"]
    show(f"{model}: attention of {found['queries']} tokens to {found['images']} images", heads, rows, out)


def _cell(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{number(value['mean'], 3)} [{value['ci95'][0]:.3f}, {value['ci95'][1]:.3f}]"


def draw_maps(maps: dict[int, list[list[float]]], path: Path) -> None:
    """The mean map of every layer over all images, each on its own scale."""
    if not maps:
        return
    with svg(path, 1, len(maps), (2.2 * len(maps), 2.6)) as axes:
        for axis, (layer, image) in zip(axes[0], maps.items(), strict=True):
            axis.pcolormesh(image, cmap="viridis", vmin=0)  # vector cells: the file stays text
            axis.set(title=f"layer {layer}", xticks=[], yticks=[], aspect="equal")
            axis.invert_yaxis()
