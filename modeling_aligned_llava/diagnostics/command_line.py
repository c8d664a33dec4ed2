"""Options that several commands share: the model, and the images to measure it on."""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.images import ImageQuestion, in_folder
from modeling_aligned_llava.errors import UserError


FOLDER_LIMIT, SAMPLE_LIMIT = 64, 1000


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the model."""
    parser.add_argument("model", help="checkpoint folder or Hub id, owner/name[@REVISION]")
    parser.add_argument("--connector", help="module between vision and language, if it is not found by its name")
    add_loading(parser)


def add_loading(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a model is loaded."""
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="precision (default auto: bfloat16 on a GPU; float32 without, in three times the memory)",
    )


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the images."""
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", type=Path, help="an image, or a folder of images")
    source.add_argument("--data", type=Path, help="data root: a sample of MMBench, POPE and MM-Star, seed 42")
    parser.add_argument(
        "--limit", type=int, help=f"number of images (default {FOLDER_LIMIT}, with --data {SAMPLE_LIMIT})"
    )


def named_images(arguments: argparse.Namespace) -> list[ImageQuestion]:
    """The images that the command line names.

    Raises:
        UserError: there are none, or `--data` is used outside a clone.
    """
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1 image is needed")
    if arguments.data is not None:
        if arguments.sample is None:
            raise UserError("--data needs a clone of the repository; without one, measure on --images")
        return arguments.sample(arguments.data, arguments.limit or SAMPLE_LIMIT)
    return in_folder(arguments.images, arguments.limit or FOLDER_LIMIT)
