"""Compares two profiles: which of their numbers differ by more than a tolerance."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Difference:
    """One number of both profiles; `off` is relative for norms and absolute for cosines, None if one lacks it."""

    where: str
    first: float | None
    second: float | None
    off: float | None
    within: bool


def compare(
    first: dict[str, Any], second: dict[str, Any], tolerance: float, cosine_tolerance: float
) -> list[Difference]:
    """Mean and median of every stage, mean norm and cosine of every layer, in the order of the data flow."""
    found = []
    for name in dict.fromkeys([*first["norms"], *second["norms"]]):
        for statistic in ("mean", "median"):
            ours, theirs = (profile["norms"].get(name, {}).get(statistic) for profile in (first, second))
            found.append(_difference(f"{name}, {statistic}", ours, theirs, tolerance, relative=True))
    for series in ("visual", "text"):
        for quantity, limit in (("norm", tolerance), ("cosine", cosine_tolerance)):
            columns = [
                profile["layers"].get(series, {}).get(quantity, {}).get("mean", []) for profile in (first, second)
            ]
            for layer in range(max(map(len, columns))):
                ours, theirs = (column[layer] if layer < len(column) else None for column in columns)
                where = f"layer {layer}, {series} {quantity}"
                found.append(_difference(where, ours, theirs, limit, relative=quantity == "norm"))
    return found


def _difference(where: str, first: float | None, second: float | None, tolerance: float, relative: bool) -> Difference:
    if first is None or second is None:
        return Difference(where, first, second, None, False)
    off = second - first
    if relative and off:
        off = off / first if first else float("inf")
    return Difference(where, first, second, off, abs(off) <= tolerance)
