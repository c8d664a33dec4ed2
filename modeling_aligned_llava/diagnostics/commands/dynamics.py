"""`dynamics PROFILE ...`: norms, cosines and the inertia attribution by layer (Figs. 2-4); training runs (Fig. 5).

A PROFILE is the JSON that `profile --json` writes; a training run is the `probe.jsonl` next to its checkpoints.
"""

import argparse
from pathlib import Path

from modeling_aligned_llava.diagnostics.measure.profile_file import read_profile, read_training
from modeling_aligned_llava.diagnostics.output.dynamics import write_dynamics
from modeling_aligned_llava.diagnostics.output.figures import draw_training
from modeling_aligned_llava.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profiles", nargs="*", metavar="[NAME=]PROFILE", help="profiles to draw side by side")
    parser.add_argument(
        "--training", nargs="+", default=[], metavar="[NAME=]probe.jsonl", help="training runs (Fig. 5)"
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the figures and tables")
    parser.add_argument(
        "--paper-convention",
        action="store_true",
        help="take the last point after the final norm, as output_hidden_states does (an artefact)",
    )


def run(arguments: argparse.Namespace) -> None:
    if not arguments.profiles and not arguments.training:
        raise UserError("nothing to draw: give a PROFILE or --training probe.jsonl")
    profiles = {name: read_profile(path) for name, path in map(_named, arguments.profiles)}
    if profiles:
        write_dynamics(profiles, arguments.out, arguments.paper_convention)
    runs = {name: read_training(path) for name, path in map(_named, arguments.training)}
    if runs:
        draw_training(runs, arguments.out / "figure5.svg")


def _named(argument: str) -> tuple[str, Path]:
    name, found, path = argument.partition("=")
    return (name, Path(path)) if found else (Path(argument).stem, Path(argument))
