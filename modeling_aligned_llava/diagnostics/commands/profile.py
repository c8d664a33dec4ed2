"""`profile MODEL --images DIR | --data ROOT`: the norms of Table 2 and the layers of Figs. 3-4, as one JSON file."""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.command_line import add_images, add_model, named_images
from modeling_aligned_llava.diagnostics.measure.profile import profile
from modeling_aligned_llava.diagnostics.output.result_tables import show_norms, show_verdict
from modeling_aligned_llava.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_images(parser)
    parser.add_argument("--json", type=Path, help="write the profile to this file")


def run(arguments: argparse.Namespace) -> None:
    result = profile(
        arguments.model,
        named_images(arguments),
        arguments.json,
        arguments.connector,
        arguments.trust_remote_code,
        arguments.dtype,
    )
    show_norms(result)
    show_verdict(result)
    if result["unreadable"]:
        first = result["unreadable"][0]["reason"]
        kept = f"; the rest is in {arguments.json}" if arguments.json else ""
        raise UserError(f"{len(result['unreadable'])} images could not be read, such as: {first}{kept}")
