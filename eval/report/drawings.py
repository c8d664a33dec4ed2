"""The figures of the page: SVG with unique ids and with the colours of the page in light and dark mode.

Differences from the baseline, norm and cosine by layer (paper Figs. 2-4), and the training logs (paper Fig. 5).
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cycler import cycler
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from eval.report.card import stage_folders
from eval.report.finished_run import FinishedRun
from eval.tables.table4 import compared, plot_differences
from modeling_aligned_llava.diagnostics.instruments.svg import draw_curve, log_scale, svg_axes


INK = "#010203"  # placeholder for the text colour of the page, as each of SERIES is for a variable of its style sheet
SERIES = tuple(f"#0102{number:02x}" for number in range(0x10, 0x18))
RC: dict[Any, Any] = {
    "font.size": 12,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 10,
    "axes.prop_cycle": cycler(color=SERIES),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.2,
} | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color"), INK)
STYLES = {"visual": "-", "text": "--", "shuffled images": ":"}
INFORMATION = "information"
QUANTITIES = {
    "norm": ("L2 norm of the input of each layer", True),
    "cosine": ("Cosine between input and output of each layer", False),
    INFORMATION: ("Visual information entering each layer: neighbours shared with", False),
}
POINTS = 300  # per curve of a training; longer logs are thinned evenly
LINES = 12  # per curve in the table of its numbers

LOGS = ("log.jsonl", "gradients.jsonl", "probe.jsonl")

Log = list[dict[str, Any]]
Curves = dict[str, list[tuple[int, float]]]  # label -> (step, value)


@dataclass(frozen=True)
class Drawing:
    """A figure of the page with its numbers, for readers who cannot see it."""

    title: str
    svg: Markup
    heads: list[str]
    rows: list[list[Any]]


def series(number: int) -> str:
    """The colour of the series with that number; they repeat."""
    return SERIES[number % len(SERIES)]


def inline_svg(name: str, title: str, draw: Callable[[Axes], None], size: tuple[float, float] = (5.2, 3.6)) -> Markup:
    """The SVG of one drawing: the same bytes for the same drawing.

    Args:
        name: unique on the page; its ids begin with it.
        title: read by screen readers.
        size: inches; the page scales it.
    """
    with svg_axes(name, size, style=RC) as (axes, svg):
        draw(axes[0, 0])
    text = svg.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(
        r"<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.DOTALL
    )  # a style is of all the page
    text = re.sub(r"""(\bid="|href="#|url\(#)""", rf"\g<1>{name}-", text)
    text = text.replace(INK, "currentColor")
    for number, colour in enumerate(SERIES):
        text = text.replace(colour, f"var(--series-{number})")
    box = re.search(r'viewBox="([^"]*)"', text)
    assert box is not None
    head = f'<svg viewBox="{box[1]}" role="img" aria-label="{escape(title)}">'
    # A title may hold backslashes; matplotlib escapes its texts.
    return Markup(re.sub(r"<svg\b[^>]*>", lambda _: head, text, count=1))  # noqa: S704


def _legend(axes: Axes) -> None:
    axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.12), ncols=2)


def differences_figure(run: FinishedRun) -> Drawing | None:
    """Each line's paired differences from the baseline; None if nothing was compared."""
    cells = compared([(line.name, line.cells) for line in run.lines])
    if not cells:
        return None
    title = "Difference from the baseline, points, with 95 % interval"
    colours = {line.name: series(number) for number, line in enumerate(run.lines)}

    def draw(axes: Axes) -> None:
        plot_differences(axes, cells, colours)
        axes.set_xlabel("points")

    return Drawing(title, inline_svg("differences", title, draw, (5.2, 4.6)), [], [])


def layer_curves(profiles: dict[str, dict[str, Any]], colours: dict[str, int]) -> list[Drawing]:
    """One figure per quantity; the last point of the norm is the output of the last layer.

    Args:
        profiles: model name -> its profile.
        colours: model name -> number of its series, the same in all figures.
    """
    return [
        _layers(name, profiles, colours) for name in QUANTITIES if any(_series(p, name) for p in profiles.values())
    ]


def _series(profile: dict[str, Any], quantity: str) -> dict[str, dict[str, Any]]:
    """Tokens -> their columns over layers."""
    if quantity != INFORMATION:
        layers = profile["layers"]
        return {tokens: layers[tokens][quantity] for tokens in STYLES if quantity in layers.get(tokens, {})}
    measured = profile.get("visual_information") or {"mean": None}  # a profile kept from before has none
    null = {"shuffled images": {"mean": measured["shuffled"]}} if measured["mean"] and measured["shuffled"] else {}
    return {"visual": measured, **null} if measured["mean"] else {}


def _layers(quantity: str, profiles: dict[str, dict[str, Any]], colours: dict[str, int]) -> Drawing:
    title, logarithmic = QUANTITIES[quantity]
    curves = {
        (model, tokens): columns
        for model, profile in profiles.items()
        for tokens, columns in _series(profile, quantity).items()
    }
    references = {columns["reference"] for columns in curves.values() if "reference" in columns}
    title = " ".join([title, *sorted(references)])

    def draw(axes: Axes) -> None:
        for (model, tokens), columns in curves.items():
            means, style = columns["mean"], {"color": series(colours[model]), "linestyle": STYLES[tokens]}
            label = f"{model}, {tokens}"
            draw_curve(axes, range(len(means)), means, columns.get("ci95"), alpha=0.2, label=label, **style)
        axes.set_xlabel("layer", loc="right")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if logarithmic:
            log_scale(axes)
        _legend(axes)

    rows: list[list[Any]] = []
    for (model, tokens), columns in curves.items():
        intervals = columns.get("ci95") or [None] * len(columns["mean"])
        for layer, (mean, interval) in enumerate(zip(columns["mean"], intervals, strict=True)):
            between = "" if interval is None or mean is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
            rows.append([model, tokens, layer, mean, between])
    svg = inline_svg(f"layers-{quantity}", f"{title}: {', '.join(profiles)}", draw)
    return Drawing(title, svg, ["model", "tokens", "layer", "mean", "95 % interval"], rows)


def training_curves(run: FinishedRun, colours: dict[str, int]) -> tuple[dict[str, list[Drawing]], list[str]]:
    """Name of a stage with logs from any model -> its figures, and a note for each model or file without any.

    Args:
        colours: model name -> number of its series.
    """
    notes = []
    logs: dict[str, dict[str, dict[str, Log]]] = {}  # stage -> file -> model
    for model in run.models:
        checkpoint, logged = run.checkpoints[model.name], False
        paths = [folder / name for folder in stage_folders(checkpoint) for name in LOGS] if checkpoint else []
        for path in (path for path in paths if path.is_file()):
            try:
                lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
            except ValueError as error:
                notes.append(f"{model.name}: {path.parent.name}/{path.name} is damaged ({error}).")
                continue
            if not lines:
                notes.append(f"{model.name}: {path.parent.name}/{path.name} is empty.")
                continue
            logged = True
            logs.setdefault(path.parent.name, {}).setdefault(path.stem, {})[model.name] = lines
        if not logged:
            notes.append(f"{model.name}: there are no training logs beside its checkpoint.")
    return {
        name.replace("stage", "stage ").capitalize(): _stage(name, logs[name], colours) for name in sorted(logs)
    }, notes


def _stage(name: str, logs: dict[str, dict[str, Log]], colours: dict[str, int]) -> list[Drawing]:
    title = name.replace("stage", "stage ")
    losses, norms = _curves(logs.get("log", {}), "loss"), _curves(logs.get("gradients", {}), "grad_norm")
    cosines: Curves = {}
    for model, log in logs.get("probe", {}).items():
        for tokens in STYLES:
            values = [(line["step"], line[tokens]["cosine"]) for line in log if tokens in line]
            cosines[f"{model}, {tokens}"] = [(step, sum(layers) / len(layers)) for step, layers in values]
    by_tokens = {label: colours[label.rpartition(", ")[0]] for label in cosines}
    return [
        *_figure(f"Loss, {title}", f"{name}-loss", losses, colours),
        *_figure(f"Gradient norm before clipping, {title}", f"{name}-gradient", norms, colours, True),
        *_figure(f"Cosine between layers, mean over layers, {title}", f"{name}-cosine", cosines, by_tokens),
    ]


def _curves(logs: dict[str, Log], quantity: str) -> Curves:
    return {model: [(line["step"], line[quantity]) for line in log if quantity in line] for model, log in logs.items()}


def _figure(
    title: str, name: str, curves: Curves, colours: dict[str, int], logarithmic: bool = False
) -> list[Drawing]:
    curves = {label: points for label, points in curves.items() if points}
    if not curves:
        return []

    def draw(axes: Axes) -> None:
        for label, points in curves.items():
            steps, values = zip(*_thinned(points, POINTS), strict=True)
            style = STYLES["text"] if label.endswith(", text") else "-"
            axes.plot(steps, values, style, color=series(colours[label]), linewidth=1.3, label=label)
        axes.set_xlabel("step", loc="right")
        if logarithmic:
            axes.set_yscale("log")
        _legend(axes)

    rows = [[label, step, value] for label, points in curves.items() for step, value in _thinned(points, LINES)]
    return [Drawing(title, inline_svg(name, f"{title}: {'; '.join(curves)}", draw), ["curve", "step", "value"], rows)]


def _thinned(points: list[tuple[int, float]], limit: int) -> list[tuple[int, float]]:
    """At most `limit` points, evenly spaced, including the first and the last."""
    if len(points) <= limit:
        return points
    return [points[round(i * (len(points) - 1) / (limit - 1))] for i in range(limit)]
