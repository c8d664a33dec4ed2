"""`parameters CHECKPOINT ...`: gain and bias of the alignment norm after training, beside Table 5."""

import argparse
import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from eval.diagnostics.hooks.loading import load
from eval.diagnostics.output.tables import PAPER, number, show
from eval.run.files import write_json
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.norm_parameters import effective_parameters, statistics
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoints", nargs="+", metavar="CHECKPOINT", help="checkpoints with an alignment norm")
    parser.add_argument("--out", type=Path, help="folder for parameters.json and the table")


def run(arguments: argparse.Namespace) -> None:
    found = {}
    for path in arguments.checkpoints:
        model, _ = load(path)
        norms = [each for each in model.modules() if isinstance(each, GlobalWeightCompensatedLayerNorm)]
        if not norms:
            raise UserError(f"{path} has no alignment norm (method {getattr(model.config, 'method', None)})")
        found[path] = norm_parameters(norms[0])
    show_parameters(found, arguments.out and arguments.out / "parameters.md")
    if arguments.out is not None:
        write_json(arguments.out / "parameters.json", found)


def norm_parameters(norm: GlobalWeightCompensatedLayerNorm) -> dict[str, Any]:
    """Statistics of the effective gain and bias [D] in float64, how far the gain went, and the token norm."""
    start = norm.gain_init * norm.scale
    gain, bias = effective_parameters(norm)
    bias = torch.zeros_like(gain) if bias is None else bias
    return {
        "gain": _statistics(gain),
        "bias": _statistics(bias),
        "gain_start": start,
        "relative_drift": ((gain - start).abs().mean() / abs(start)).item(),
        "token_norm": math.hypot(gain.norm().item(), bias.norm().item()),
    }


def _statistics(values: Tensor) -> dict[str, float]:
    return {key: value for key, value in statistics(values).items() if key != "std"}


def show_parameters(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Table 5; its number in brackets is the variance of |x|, by the paper's own digits."""
    rows = []
    for path, numbers in found.items():
        for name in ("gain", "bias"):
            each = numbers[name]
            cells = [number(each[key]) for key in ("l2", "mean_abs")]
            cells += [f"{each[key]:.2e}" for key in ("var_abs", "std_abs", "standard_error")]
            extra = [number(numbers[key]) for key in ("gain_start", "relative_drift", "token_norm")]
            rows.append([f"{path}: {name}", *cells, *(extra if name == "gain" else ["-"] * 3)])
    for method, paper in PAPER["norm_parameters"].items():
        for name in ("gain", "bias"):
            cells = [
                number(paper.get(f"{name}_l2")),
                number(paper[f"{name}_mean_abs"]),
                f"{paper[f'{name}_spread']:.0e}",
            ]
            rows.append([f"paper, {method}: {name}", *cells, *["-"] * 5])
    heads = ["", "L2", "mean abs", "var abs", "std abs", "s.e.", "start", "relative drift", "token norm"]
    show("Gain and bias of the norm (Table 5)", heads, rows, out)
