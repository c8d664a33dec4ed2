"""`theory`: every equation of Appendix B against its simulation; and, with PROFILE, against a measured model."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from eval.diagnostics.measure.profile_file import read_profile
from eval.diagnostics.output.tables import number, show
from eval.diagnostics.theory.prediction import predicted_rotation
from eval.diagnostics.theory.simulation import GROUPS, Check
from eval.run.files import write_json
from modeling_aligned_llava.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("profiles", nargs="*", type=Path, metavar="PROFILE", help="JSON that `profile --json` wrote")
    parser.add_argument("--out", type=Path, help="folder for theory.json and the tables as Markdown")


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
    odd = [check.statement for check in checks if not check.as_expected]
    if odd:
        raise UserError(f"{len(odd)} checks came out otherwise than the closed form says, such as: {odd[0]}")


def show_checks(checks: list[Check], out: Path | None = None) -> None:
    rows = [
        [
            f"{check.equation}: {check.statement}",
            number(check.predicted, 5),
            f"{check.estimate:.5f} ± {check.error:.5f}",
            "holds" if check.holds else "fails",
        ]
        for check in checks
    ]
    show(
        "Closed form against Monte-Carlo (± one standard error; holds: within 3)",
        ["Eq.", "closed form", "simulated", ""],
        rows,
        out,
    )


def show_prediction(profile: dict[str, Any]) -> None:
    found = predicted_rotation(profile)
    columns = [found[name] for name in ("predicted_ratio", "measured_ratio", "coherence")]
    rows = [[str(i), *(number(value) for value in cells)] for i, cells in enumerate(zip(*columns, strict=True))]
    title = (
        f"{profile['model']}: rotation of visual over text tokens; the norms explain {found['share']:.2f} of the log "
        f"ratio, R² about zero {found['r_squared']:.2f}"
    )
    show(title, ["layer", "N_t / N_v (Eq. 9)", "measured", "coherence c"], rows)
