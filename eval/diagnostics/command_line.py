"""Options that several commands share: the model and the images to measure it on."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from eval.data.image_sample import Picture, in_benchmarks, in_folder
from modeling_aligned_llava.errors import UserError


FOLDER_LIMIT, SAMPLE_LIMIT = 64, 1000


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="checkpoint folder or Hub id")
    parser.add_argument("--connector", help="module between vision and language, where its name is an unusual one")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")


def add_pictures(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", type=Path, help="a picture, or a folder of pictures")
    source.add_argument("--data", type=Path, help="data root: a sample of MMBench, POPE and MM-Star, seed 42")
    parser.add_argument("--limit", type=int, help=f"pictures (default {FOLDER_LIMIT}, with --data {SAMPLE_LIMIT})")


def pictures(arguments: argparse.Namespace) -> list[Picture]:
    """The pictures that the command line names; UserError without any."""
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1 picture is needed")
    if arguments.data is not None:
        return in_benchmarks(arguments.data, arguments.limit or SAMPLE_LIMIT)
    return in_folder(arguments.images, arguments.limit or FOLDER_LIMIT)


@contextmanager
def readable_pictures(arguments: argparse.Namespace) -> Iterator[list[Picture]]:
    """The named pictures that can be read; those that cannot are reported when the `with` block has done its work.

    Raises:
        UserError: a picture cannot be read.
    """
    readable, reasons = [], []
    for picture in pictures(arguments):
        try:
            picture.open()
            readable.append(picture)
        except UserError as error:
            reasons.append(str(error))
    if not readable:
        raise UserError(reasons[0])
    yield readable
    if reasons:
        raise UserError(f"{len(reasons)} pictures could not be read, such as: {reasons[0]}; the rest was measured")
