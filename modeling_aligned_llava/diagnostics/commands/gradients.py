"""`gradients MODEL --images DIR | --data ROOT`: gradient norms with no norm, the norm and GWC; does one vanish?"""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.command_line import add_images, add_model, named_images
from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.measure.gradients import gradients
from modeling_aligned_llava.diagnostics.output.result_tables import show_gradients
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for gradients.json and a table")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code, arguments.dtype)
    found = gradients(model, processor, named_images(arguments), arguments.connector)
    show_gradients(arguments.model, found, arguments.out and arguments.out / "gradients.md")
    if arguments.out is not None:
        write_json(arguments.out / "gradients.json", found)
