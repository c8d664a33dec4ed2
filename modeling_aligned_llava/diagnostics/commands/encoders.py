"""`encoders MODEL ... --images DIR | --data ROOT`: norms of vision encoder outputs (Table 1).

The choice of output decides the number: SigLIP's last hidden state has passed its final norm, CLIP's has not; LLaVA
reads the second-to-last layer and drops the class token. All are printed, and of a vision-language model what its
connector reads; the paper does not name the one it used.
"""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.command_line import add_images, add_loading, named_images
from modeling_aligned_llava.diagnostics.hooks.loading import load_encoder
from modeling_aligned_llava.diagnostics.measure.encoders import encoder_norms
from modeling_aligned_llava.diagnostics.output.result_tables import show_encoders
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="vision encoders, CLIP-like or vision-language models"
    )
    add_loading(parser)
    add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for encoders.json and the table")


def run(arguments: argparse.Namespace) -> None:
    sample = named_images(arguments)
    found = {}
    for path in arguments.models:
        found[path] = encoder_norms(*load_encoder(path, arguments.trust_remote_code, arguments.dtype), sample)
    show_encoders(found, arguments.out and arguments.out / "encoders.md")
    if arguments.out is not None:
        write_json(arguments.out / "encoders.json", found)
