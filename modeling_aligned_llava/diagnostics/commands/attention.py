"""`attention MODEL --images DIR | --data ROOT`: where text attends in the image (App. G), as numbers and maps."""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.command_line import add_images, add_model, named_images
from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.measure.attention import attention
from modeling_aligned_llava.diagnostics.output.figures import draw_maps
from modeling_aligned_llava.diagnostics.output.result_tables import show_attention
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_images(parser)
    parser.add_argument("--queries", choices=("text", "last"), default="text", help="querying tokens (default text)")
    parser.add_argument("--out", type=Path, help="folder for attention.json, a table and the maps")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code, arguments.dtype)
    found = attention(model, processor, named_images(arguments), arguments.queries, arguments.connector)
    show_attention(arguments.model, found, arguments.out and arguments.out / "attention.md")
    if arguments.out is not None:
        draw_maps(found.pop("maps"), arguments.out / "attention.svg")
        write_json(arguments.out / "attention.json", found)
