"""`parameters CHECKPOINT ...`: gain and bias of the alignment norm after training, next to Table 5."""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.measure.norm_statistics import norm_statistics
from modeling_aligned_llava.diagnostics.output.result_tables import show_parameters
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.finite import check_finite
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="checkpoints with an alignment norm")
    parser.add_argument("--out", type=Path, help="folder for parameters.json and the table")


def run(arguments: argparse.Namespace) -> None:
    found = {}
    for path in arguments.checkpoints:
        model, _ = load(path)
        norm = alignment_norm(model)
        if norm is None:
            raise UserError(f"{path} has no alignment norm (method {getattr(model.config, 'method', None)})")
        for each in norm.parameters():
            check_finite(each, model, "gain or bias")
        found[path] = norm_statistics(norm)
    show_parameters(found, arguments.out and arguments.out / "parameters.md")
    if arguments.out is not None:
        write_json(arguments.out / "parameters.json", found)
