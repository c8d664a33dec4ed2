"""`theory PROFILE ...`: how much of the rotation of visual and text tokens do their norms predict (Eq. 9)?"""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.measure.prediction import predicted_rotation
from modeling_aligned_llava.diagnostics.measure.profile_file import read_profile
from modeling_aligned_llava.diagnostics.output.result_tables import show_prediction
from modeling_aligned_llava.loading.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profiles", nargs="+", type=Path, metavar="PROFILE", help="JSON that `profile --json` wrote")
    parser.add_argument("--json", type=Path, help="write the predictions to this file")


def run(arguments: argparse.Namespace) -> None:
    profiles = [read_profile(path) for path in arguments.profiles]
    for profile in profiles:
        show_prediction(profile)
    if arguments.json is not None:
        write_json(arguments.json, {profile["model"]: predicted_rotation(profile) for profile in profiles})
