"""The figures: norms, cosines and attribution by layer (Figs. 2-4), training (Fig. 5), attention maps."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import acos, degrees
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from modeling_aligned_llava.diagnostics.measure.rotation import TERMS
from modeling_aligned_llava.diagnostics.output.svg import draw_curve, log_scale, svg_axes
from modeling_aligned_llava.loading.files import write_text


COLOURS = {"visual": "tab:red", "text": "tab:blue"}


@contextmanager
def _svg_file(path: Path, rows: int, columns: int, size: tuple[float, float]) -> Iterator[Any]:
    """Axes [rows, columns] to draw on; the file is written when the `with` block ends."""
    with svg_axes(path.stem, size, rows, columns) as (axes, svg):
        yield axes
    write_text(path, svg.getvalue())


def draw_dynamics(profiles: dict[str, dict[str, Any]], path: Path, paper_convention: bool = False) -> None:
    """Norm (above) and rotation (below) by layer, one column per model; shaded: 95 % interval over images.

    `paper_convention`: take the last point after the final norm, as `output_hidden_states` does.
    """
    with _svg_file(path, 2, len(profiles), (4.2 * len(profiles), 6)) as axes:
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
    limits = [each.get_ylim() for each in row]
    for each in row:
        each.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


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
    with _svg_file(path, 1, len(profiles), (4.2 * len(profiles), 3.5)) as axes:
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
    with _svg_file(path, 1, len(records), (4.2 * len(records), 3.2)) as axes:
        for axis, (name, lines) in zip(axes[0], records.items(), strict=True):
            for series, colour in COLOURS.items():
                known = [line for line in lines if series in line]
                means = [sum(line[series]["cosine"]) / len(line[series]["cosine"]) for line in known]
                axis.plot(
                    [line["step"] for line in known], means, color=colour, marker="o", markersize=3, label=series
                )
            axis.set(title=name, xlabel="step", ylabel="cosine between layers, mean over layers")
        axes[0, 0].legend()


def draw_maps(maps: dict[int, list[list[float]]], path: Path) -> None:
    """The mean map of every layer over all images, each on its own scale."""
    if not maps:
        return
    with _svg_file(path, 1, len(maps), (2.2 * len(maps), 2.6)) as axes:
        for axis, (layer, image) in zip(axes[0], maps.items(), strict=True):
            axis.pcolormesh(image, cmap="viridis", vmin=0)  # vector cells: the file stays text
            axis.set(title=f"layer {layer}", xticks=[], yticks=[], aspect="equal")
            axis.invert_yaxis()
