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


@torch.no_grad()
def norm_parameters(norm: GlobalWeightCompensatedLayerNorm) -> dict[str, Any]:
    """Statistics of the effective gain and bias [D] in float64, how far the gain went, and the token norm."""
    start = norm.gain_init * norm.scale
    gain = torch.full((norm.dim,), start, dtype=torch.float64)
    if norm.weight is not None:
        gain = (norm.weight.double().cpu() * norm.scale).expand(norm.dim)
    bias = torch.zeros(norm.dim, dtype=torch.float64) if norm.bias is None else norm.bias.double().cpu() * norm.scale
    return {
        "gain": _statistics(gain),
        "bias": _statistics(bias),
        "gain_start": start,
        "relative_drift": ((gain - start).abs().mean() / abs(start)).item(),
        "token_norm": math.hypot(gain.norm().item(), bias.norm().item()),
    }


def _statistics(values: Tensor) -> dict[str, float]:
    size = values.abs()
    return {
        "l2": values.norm().item(),
        "mean_abs": size.mean().item(),
        "var_abs": size.var().item(),
        "std_abs": size.std().item(),
        "standard_error": size.std().item() / math.sqrt(len(values)),
        "min": values.min().item(),
        "negative": float((values < 0).sum()),
        "rms": values.square().mean().sqrt().item(),
    }


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
