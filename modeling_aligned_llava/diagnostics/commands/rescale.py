"""`rescale MODEL --images DIR | --data ROOT`: visual tokens times k at inference, and the effects."""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.command_line import add_images, add_model, readable_images
from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.measure.rescale import FACTORS, rescale
from modeling_aligned_llava.diagnostics.output.figures import draw_rescale
from modeling_aligned_llava.diagnostics.output.result_tables import show_rescale
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_images(parser)
    parser.add_argument(
        "--factors",
        nargs="+",
        type=float,
        default=list(FACTORS),
        metavar="K",
        help="values of k (default %(default)s)",
    )
    parser.add_argument("--out", type=Path, help="folder for rescale.json, a table and a figure")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    with readable_images(arguments) as sample:
        found = rescale(model, processor, sample, arguments.factors, arguments.connector)
        show_rescale(arguments.model, found, arguments.out and arguments.out / "rescale.md")
        if arguments.out is not None:
            draw_rescale(found, arguments.out / "rescale.svg")
            write_json(arguments.out / "rescale.json", found)
