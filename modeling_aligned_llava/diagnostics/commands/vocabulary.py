"""`vocabulary MODEL --images DIR | --data ROOT`: visual vocabularies such as Ovis's (Table 3), rows and real tokens.

The decoder reads mixtures of rows with probabilities p. Their norm is about |row| / sqrt(N_eff), with N_eff =
1 / sum p^2, so the norm of the rows alone, which the paper reports, says little about what the decoder reads.
"""

import argparse
from pathlib import Path

from rich.progress import track

from modeling_aligned_llava.diagnostics.command_line import add_images, add_model, named_images
from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of, load, tokenizer_of
from modeling_aligned_llava.diagnostics.measure.vocabulary import check_vocabulary, vocabulary
from modeling_aligned_llava.diagnostics.output.result_tables import show_vocabulary
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.inspection.text_stream import special_ids
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_images(parser)
    parser.add_argument("--out", type=Path, help="folder for vocabulary.json and the table")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code, arguments.dtype)
    parts = model_parts(model, arguments.connector)
    check_vocabulary(parts, arguments.model)
    special = special_ids(tokenizer_of(processor), model.config)
    inputs = (inputs_of(processor, image, model.device, model.dtype) for image in track(named_images(arguments)))
    found = vocabulary(model, parts, inputs, special)
    show_vocabulary(arguments.model, found, arguments.out and arguments.out / "vocabulary.md")
    if arguments.out is not None:
        write_json(arguments.out / "vocabulary.json", found)
