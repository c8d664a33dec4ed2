"""`parameters`: gain and bias of a trained alignment norm in numbers, beside the paper's Table 5."""

import argparse
import math
from pathlib import Path
from typing import Any

import torch

from modeling_aligned_llava.diagnostics.instruments.models import load
from modeling_aligned_llava.diagnostics.instruments.tables import PAPER, number, show_table
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.forward_pass import check_finite
from modeling_aligned_llava.inspection.norm_parameters import (
    alignment_norm,
    collapsed,
    effective_parameters,
    statistics,
)
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm


def run(arguments: argparse.Namespace) -> None:
    norms = {}
    for path in arguments.checkpoints:
        model, _ = load(path)
        norm = alignment_norm(model)
        if norm is None:
            raise UserError(f"{path} has no alignment norm (method {getattr(model.config, 'method', None)})")
        for parameter in norm.parameters():
            check_finite(parameter, model, "gain or bias")
        norms[path] = norm_statistics(norm)
    show_parameters(norms, arguments.out and arguments.out / "parameters.md")
    if arguments.out is not None:
        write_json(arguments.out / "parameters.json", norms)


def norm_statistics(norm: GlobalWeightCompensatedLayerNorm) -> dict[str, Any]:
    """Statistics of the effective gain and bias [D] in float64, drift and collapse of the gain, and the token norm."""
    start = norm.gain_init * norm.scale
    gain, bias = effective_parameters(norm)
    bias = torch.zeros_like(gain) if bias is None else bias
    return {
        "gain": statistics(gain),
        "bias": statistics(bias),
        "gain_start": start,
        "gain_collapsed": collapsed(gain, norm),
        "relative_drift": ((gain - start).abs().mean() / abs(start)).item(),
        "token_norm": math.hypot(gain.norm().item(), bias.norm().item()),
    }


def show_parameters(norms: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Table 5; judging by its digits, the paper's number in brackets is the variance of |x|."""
    rows = []
    for path, numbers in norms.items():
        for name in ("gain", "bias"):
            cells = [number(numbers[name][key]) for key in ("l2", "mean_abs")]
            cells += [f"{numbers[name][key]:.2e}" for key in ("var_abs", "std_abs", "standard_error")]
            extra = [number(numbers[key]) for key in ("gain_start", "relative_drift", "token_norm")]
            rows.append([f"{path}: {name}", *cells, *(extra if name == "gain" else ["-"] * 3)])
    for method, paper in PAPER["norm_parameters"].items():
        for name in ("gain", "bias"):
            cells = [number(paper.get(f"{name}_l2")), number(paper[f"{name}_mean_abs"])]
            rows.append([f"paper, {method}: {name}", *cells, f"{paper[f'{name}_spread']:.0e}", *["-"] * 5])
    heads = ["", "L2", "mean abs", "var abs", "std abs", "s.e.", "start", "relative drift", "token norm"]
    show_table("Gain and bias of the norm (Table 5)", heads, rows, out)
    for path in (path for path, numbers in norms.items() if numbers["gain_collapsed"]):
        print(f"warning: {path}: the gain has collapsed: its mean magnitude is below compensation_eps")  # noqa: T201
