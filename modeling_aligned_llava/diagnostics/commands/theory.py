"""`theory`: every equation of Appendix B against its simulation; with PROFILE, also against a measured model."""

import argparse
from dataclasses import asdict
from pathlib import Path

from modeling_aligned_llava.diagnostics.measure.profile_file import read_profile
from modeling_aligned_llava.diagnostics.output.result_tables import show_checks, show_prediction
from modeling_aligned_llava.diagnostics.theory.prediction import predicted_rotation
from modeling_aligned_llava.diagnostics.theory.simulation import GROUPS
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profiles", nargs="*", type=Path, metavar="PROFILE", help="JSON that `profile --json` wrote")
    parser.add_argument("--out", type=Path, help="folder for theory.json and the table as Markdown")


def run(arguments: argparse.Namespace) -> None:
    profiles = [read_profile(path) for path in arguments.profiles]
    checks = [check for group in GROUPS.values() for check in group()]
    show_checks(checks, arguments.out and arguments.out / "theory.md")
    for profile in profiles:
        show_prediction(profile)
    if arguments.out is not None:
        found = [{**asdict(check), "holds": check.holds} for check in checks]
        predictions = {profile["model"]: predicted_rotation(profile) for profile in profiles}
        write_json(arguments.out / "theory.json", {"checks": found, "predictions": predictions})
    unexpected = [check.statement for check in checks if not check.as_expected]
    if unexpected:
        raise UserError(f"{len(unexpected)} checks contradict their closed form, such as: {unexpected[0]}")
