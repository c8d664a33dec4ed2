"""`compare A B`: two profiles side by side; exit status 1 if they differ by more than the tolerance.

It catches a port or a conversion with the wrong visual scale: profile both on the same images, compare them in CI.
"""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.measure.profile_difference import compare
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
