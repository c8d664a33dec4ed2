"""Tables of a study, and the means over seeds that they show."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from eval.score.seeds import of_numbers
from modeling_aligned_llava.diagnostics.instruments.tables import number


@dataclass(frozen=True)
class Table:
    """A table for a page; without rows it is left out."""

    title: str
    heads: list[str]
    rows: list[list[str]]


def interval(values: list[float]) -> dict[str, Any]:
    """Mean of a sample with its 95 % interval and deviation, which are None with one value, or if one is infinite."""
    finite = all(map(math.isfinite, values))
    if len(values) < 2 or not finite:
        return {"mean": float(np.mean(values)) if finite else None, "ci95": None, "sd": None, "n": len(values)}
    mean = of_numbers(values)
    half = mean.half_width
    ends = None if half is None else [mean.value - half, mean.value + half]
    return {"mean": mean.value, "ci95": ends, "sd": mean.sample_variance**0.5, "n": len(values)}


def shown(found: dict[str, Any] | None, digits: int = 3) -> str:
    """`0.512 [0.498, 0.526]`."""
    if found is None:
        return "-"
    ends = found["ci95"] and ", ".join(number(end, digits) for end in found["ci95"])
    return number(found["mean"], digits) + (f" [{ends}]" if ends else "")
