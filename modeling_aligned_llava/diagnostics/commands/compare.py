"""`compare A B`: two profiles side by side; exit status 1 if they differ by more than the tolerance.

It catches a port or a conversion with the wrong visual scale: profile both on the same images, compare them in CI.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.measure.profile_file import read_profile
from modeling_aligned_llava.diagnostics.output.result_tables import show_verdict
from modeling_aligned_llava.diagnostics.output.tables import number, show_table
from modeling_aligned_llava.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("first", type=Path, metavar="A", help="profile of the reference")
    parser.add_argument("second", type=Path, metavar="B", help="profile that should be equal to it")
    parser.add_argument("--tolerance", type=float, default=0.02, help="relative, for norms (default 0.02)")
    parser.add_argument("--cosine-tolerance", type=float, default=0.01, help="absolute, for cosines (default 0.01)")


def run(arguments: argparse.Namespace) -> None:
    first, second = read_profile(arguments.first), read_profile(arguments.second)
    if sorted(first["image_ids"]) != sorted(second["image_ids"]):
        raise UserError("the two profiles were measured on different images: their numbers cannot be compared")
    found = compare(first, second, arguments.tolerance, arguments.cosine_tolerance)
    rows = [
        [each.where, number(each.first), number(each.second), number(each.off), "" if each.within else "differs"]
        for each in found
    ]
    show_table("Two profiles", ["where", str(arguments.first), str(arguments.second), "off by", ""], rows)
    for profile in (first, second):
        show_verdict(profile)
    off = [each for each in found if not each.within]
    if off:
        raise UserError(f"{len(off)} of {len(found)} numbers differ, the first: {off[0].where}")


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
