"""`dynamics`: norms, rotations and their attribution by layer (paper Figs. 2-4), over training (Fig. 5), drawn."""

import argparse
import json
from collections.abc import Iterable
from math import acos, degrees
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from modeling_aligned_llava.diagnostics.instruments.svg import draw_curve, log_scale, svg_file
from modeling_aligned_llava.diagnostics.instruments.tables import number, show_table
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import are_finite, attribution_of, read_profile
from modeling_aligned_llava.diagnostics.norm_profile.rotation import TERMS
from modeling_aligned_llava.errors import UserError, errors_named


COLOURS = {"visual": "tab:red", "text": "tab:blue"}


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
    name, named, path = argument.partition("=")
    return (name, Path(path)) if named else (Path(argument).stem, Path(argument))


def read_training(path: Path) -> list[dict[str, Any]]:
    """The lines of a `probe.jsonl`.

    Raises:
        UserError: the file is missing, empty or damaged.
    """
    if not path.is_file():
        raise UserError(f"--training: there is no file {path}")
    lines = []
    for place, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        with errors_named(f"{path}, line {place}", ValueError):
            lines.append(json.loads(line))
        probed = [record for record in lines[-1].values() if isinstance(record, dict)]
        if not are_finite([value for record in probed for value in record["norm"] + record["cosine"]]):
            raise UserError(f"{path}, line {place}: the states of this model were not finite")
    if not lines:
        raise UserError(f"{path} is empty: training wrote no probe")
    return lines


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


def draw_dynamics(profiles: dict[str, dict[str, Any]], path: Path, paper_convention: bool = False) -> None:
    """Norm (above) and rotation (below) by layer, one column per model; shaded: 95 % interval over images.

    `paper_convention`: take the last point after the final norm, as `output_hidden_states` does.
    """
    with svg_file(path, 2, len(profiles), (4.2 * len(profiles), 6)) as axes:
        for column, (name, profile) in enumerate(profiles.items()):
            for series, colour in COLOURS.items():
                if series in profile["layers"]:
                    for axis, quantity in zip(axes[:, column], ("norm", "angle"), strict=True):
                        means, intervals = _points(profile, series, quantity, paper_convention)
                        draw_curve(axis, range(len(means)), means, intervals, color=colour, label=series)
            axes[0, column].set(title=name, ylabel="L2 norm of what enters the layer")
            log_scale(axes[0, column])
            axes[1, column].set(ylim=(0, None), ylabel="rotation by the layer, degrees", xlabel="layer")
            axes[0, column].legend()
        for row in axes:
            _one_scale(row)


def _one_scale(row: Iterable[Axes]) -> None:
    """Give all models of a row the same vertical range."""
    limits = [axes.get_ylim() for axes in row]
    for axes in row:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def _points(profile: dict[str, Any], series: str, quantity: str, paper_convention: bool) -> tuple[list, list | None]:
    columns = profile["layers"][series][quantity]
    means, intervals = list(columns["mean"]), columns.get("ci95")
    if paper_convention:
        last = profile["output_hidden_states_convention"][series]
        means[-1] = last["norm"] if quantity == "norm" else acos(last["cosine"])
        intervals = intervals and [*intervals[:-1], [means[-1], means[-1]]]
    if quantity == "angle":
        means, intervals = _in_degrees(means), intervals and [_in_degrees(interval) for interval in intervals]
    return means, intervals


def _in_degrees(angles: Iterable[float | None]) -> list[float | None]:
    return [None if angle is None else degrees(angle) for angle in angles]


def draw_attribution(profiles: dict[str, dict[str, Any]], path: Path) -> None:
    """The four terms of mean log tan(theta), visual minus text, stacked by layer; the dot is their sum."""
    with svg_file(path, 1, len(profiles), (4.2 * len(profiles), 3.5)) as axes:
        for axis, (name, profile) in zip(axes[0], profiles.items(), strict=True):
            terms = profile["attribution"]
            layers = range(len(terms["total"]["value"]))
            above, below = [0.0] * len(layers), [0.0] * len(layers)
            for term in TERMS:
                values = terms[term]["value"]
                bottom = [above[i] if values[i] > 0 else below[i] for i in layers]
                axis.bar(layers, values, bottom=bottom, label=term, width=0.7)
                for i in layers:
                    above[i], below[i] = above[i] + max(values[i], 0), below[i] + min(values[i], 0)
            total = terms["total"]
            errors = [[v - ci[0] for v, ci in zip(total["value"], total["ci95"], strict=True)]]
            errors.append([ci[1] - v for v, ci in zip(total["value"], total["ci95"], strict=True)])
            axis.errorbar(layers, total["value"], yerr=errors, fmt="ko", markersize=4, capsize=3, label="total")
            axis.axhline(0, color="black", linewidth=0.8)
            axis.set(title=name, xlabel="layer", ylabel="log tan(theta), visual - text")
        _one_scale(axes[0])
        axes[0, 0].legend(fontsize="small")


def draw_training(records: dict[str, list[dict[str, Any]]], path: Path) -> None:
    """Fig. 5: mean cosine over layers of each modality over training, one column per run."""
    with svg_file(path, 1, len(records), (4.2 * len(records), 3.2)) as axes:
        for axis, (name, lines) in zip(axes[0], records.items(), strict=True):
            for series, colour in COLOURS.items():
                known = [line for line in lines if series in line]
                means = [sum(line[series]["cosine"]) / len(line[series]["cosine"]) for line in known]
                axis.plot(
                    [line["step"] for line in known], means, color=colour, marker="o", markersize=3, label=series
                )
            axis.set(title=name, xlabel="step", ylabel="cosine between layers, mean over layers")
        axes[0, 0].legend()
