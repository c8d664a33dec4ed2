"""`dynamics PROFILE ...`: norms, cosines and the inertia attribution by layer (Figs. 2-4); training runs (Fig. 5).

A PROFILE is the JSON that `profile --json` writes; a training run is the `probe.jsonl` next to its checkpoints.
"""

import argparse
from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.measure.profile_file import attribution_of, read_profile, read_training
from modeling_aligned_llava.diagnostics.measure.rotation import TERMS
from modeling_aligned_llava.diagnostics.output.figures import draw_attribution, draw_dynamics, draw_training
from modeling_aligned_llava.diagnostics.output.tables import number, show_table
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


def write_dynamics(profiles: dict[str, dict[str, Any]], out: Path, paper_convention: bool = False) -> None:
    """Write the figures of all profiles side by side and a table for each into the folder `out`.

    Raises:
        UserError: a profile has no angles of one modality.
    """
    for profile in profiles.values():
        attribution_of(profile)
    draw_dynamics(profiles, out / "dynamics.svg", paper_convention)
    draw_attribution(profiles, out / "attribution.svg")
    for name, profile in profiles.items():
        _show_layers(name, profile, out / f"dynamics-{name}.md")


def _show_layers(name: str, profile: dict[str, Any], out: Path) -> None:
    """By layer: norm and cosine of both modalities, and the terms of the difference between their rotations."""
    visual, text, terms = profile["layers"]["visual"], profile["layers"]["text"], profile["attribution"]
    rows = []
    for layer, cosine in enumerate(visual["cosine"]["mean"]):
        low, high = profile["cosine_gap"]["ci95"][layer]
        rows.append(
            [
                str(layer),
                *(number(series["norm"]["mean"][layer], 3) for series in (visual, text)),
                number(cosine),
                number(text["cosine"]["mean"][layer]),
                f"{profile['cosine_gap']['value'][layer]:+.4f} [{low:+.4f}, {high:+.4f}]",
                *(f"{terms[term]['value'][layer]:+.2f}" for term in ("total", *TERMS)),
            ]
        )
    heads = ["layer", "norm visual", "text", "cosine visual", "text", "visual - text, 95 %"]
    heads += ["total", "= norm", "+ update", "+ angle", "+ parallel"]
    show_table(f"{name}: norms, cosines and log tan(theta), visual - text", heads, rows, out)


def _named(argument: str) -> tuple[str, Path]:
    name, found, path = argument.partition("=")
    return (name, Path(path)) if found else (Path(argument).stem, Path(argument))
