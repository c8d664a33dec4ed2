"""`compare`: two profiles number by number; it fails if they differ by more than the tolerance."""

import argparse
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from modeling_aligned_llava.diagnostics.instruments.tables import number, show_table
from modeling_aligned_llava.diagnostics.norm_profile.connector_norm import connector_line
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import read_profile
from modeling_aligned_llava.diagnostics.norm_profile.verdict import show_verdict
from modeling_aligned_llava.errors import UserError


def run(arguments: argparse.Namespace) -> None:
    first, second = read_profile(arguments.first), read_profile(arguments.second)
    if sorted(first["image_ids"]) != sorted(second["image_ids"]):
        raise UserError("the two profiles were measured on different images: their numbers cannot be compared")
    differences = compare(first, second, arguments.tolerance, arguments.cosine_tolerance)
    beyond = [difference for difference in differences if not difference.within]
    rows = [
        [cell.where, number(cell.first), number(cell.second), number(cell.off), "" if cell.within else "differs"]
        for cell in differences
    ]
    show_table("Two profiles", ["where", str(arguments.first), str(arguments.second), "off by", ""], rows)
    for profile in (first, second):
        show_verdict(profile)
    norms = [profile.get("connector_norm", {}) for profile in (first, second)]
    if all("place" in norm for norm in norms) and norms[0]["place"] != norms[1]["place"]:
        lines = "; ".join(connector_line(norm).removesuffix(".") for norm in norms)
        raise UserError(f"the connectors normalise in different places. {lines}")
    if beyond:
        raise UserError(f"{len(beyond)} of {len(differences)} numbers differ, the first: {beyond[0].where}")


@dataclass(frozen=True)
class Difference:
    """One number of both profiles; `off` is relative for norms and absolute for others, None if one lacks it."""

    where: str
    first: float | None
    second: float | None
    off: float | None
    within: bool


def compare(
    first: dict[str, Any], second: dict[str, Any], tolerance: float, cosine_tolerance: float
) -> list[Difference]:
    """Mean and median of every stage, mean norm, cosine and visual information of every layer.

    Visual information differs if each is outside the other's interval; without it, or with another reference, there is
    no difference to judge.
    """
    differences = []
    for name in dict.fromkeys([*first["norms"], *second["norms"]]):
        for statistic in ("mean", "median"):
            ours, theirs = (profile["norms"].get(name, {}).get(statistic) for profile in (first, second))
            differences.append(_difference(f"{name}, {statistic}", ours, theirs, tolerance, relative=True))
    for series in ("visual", "text"):
        for quantity, limit in (("norm", tolerance), ("cosine", cosine_tolerance)):
            columns = [
                profile["layers"].get(series, {}).get(quantity, {}).get("mean", []) for profile in (first, second)
            ]
            for layer in range(max(map(len, columns))):
                ours, theirs = (column[layer] if layer < len(column) else None for column in columns)
                where = f"layer {layer}, {series} {quantity}"
                differences.append(_difference(where, ours, theirs, limit, relative=quantity == "norm"))
    return differences + _information(first, second)


def _information(first: dict[str, Any], second: dict[str, Any]) -> list[Difference]:
    both = [profile.get("visual_information") or {"mean": None} for profile in (first, second)]
    values = [measured["mean"] or [] for measured in both]
    judged = all(values) and both[0]["reference"] == both[1]["reference"]
    differences = []
    for layer, (ours, theirs) in enumerate(zip_longest(*values)):
        apart = judged and all(measured["ci95"] for measured in both)
        if apart:
            (low, high), (lower, higher) = (measured["ci95"][layer] for measured in both)
            apart = not (lower <= ours <= higher or low <= theirs <= high)
        off = theirs - ours if judged else None
        differences.append(Difference(f"layer {layer}, visual information", ours, theirs, off, not apart))
    return differences


def _difference(where: str, first: float | None, second: float | None, tolerance: float, relative: bool) -> Difference:
    if first is None or second is None:
        return Difference(where, first, second, None, False)
    off = second - first
    if relative and off:
        off = off / first if first else float("inf")
    return Difference(where, first, second, off, abs(off) <= tolerance)
