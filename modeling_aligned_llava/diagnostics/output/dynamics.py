"""Norms, cosines and the attribution of profiles, layer by layer (Figs. 2-4): figures and one table per profile."""

from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.measure.profile_file import attribution_of
from modeling_aligned_llava.diagnostics.measure.rotation import TERMS
from modeling_aligned_llava.diagnostics.output.figures import draw_attribution, draw_dynamics
from modeling_aligned_llava.diagnostics.output.tables import number, show_table


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
