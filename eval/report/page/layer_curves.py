"""Norm and cosine of visual and text tokens by layer, all models in one drawing (paper Figs. 2-4)."""

from collections.abc import Callable
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from eval.report.page.inline_svg import Drawing, inline_svg, series
from modeling_aligned_llava.diagnostics.instruments.svg import draw_curve, log_scale


STYLES = {"visual": "-", "text": "--"}
QUANTITIES = {
    "norm": ("L2 norm of the input of each layer", True),
    "cosine": ("Cosine between input and output of each layer", False),
}


def layer_curves(profiles: dict[str, dict[str, Any]], colours: dict[str, int]) -> list[Drawing]:
    """One figure per quantity; the last point of the norm is the output of the last layer.

    Args:
        profiles: model name -> its profile.
        colours: model name -> number of its series, the same in all figures.
    """
    return [
        Drawing(
            title,
            inline_svg(
                f"layers-{name}", f"{title}: {', '.join(profiles)}", _draw(name, logarithmic, profiles, colours)
            ),
            ["model", "tokens", "layer", "mean", "95 % interval"],
            _rows(name, profiles),
        )
        for name, (title, logarithmic) in (QUANTITIES.items() if profiles else ())
    ]


def _draw(
    name: str, logarithmic: bool, profiles: dict[str, dict[str, Any]], colours: dict[str, int]
) -> Callable[[Axes], None]:
    def draw(axes: Axes) -> None:
        for model, profile in profiles.items():
            for tokens, style in STYLES.items():
                columns = profile["layers"].get(tokens, {}).get(name)
                if columns is None:
                    continue
                draw_curve(
                    axes,
                    range(len(columns["mean"])),
                    columns["mean"],
                    columns.get("ci95"),
                    alpha=0.2,
                    color=series(colours[model]),
                    linestyle=style,
                    label=f"{model}, {tokens}",
                )
        axes.set_xlabel("layer", loc="right")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        if logarithmic:
            log_scale(axes)
        axes.legend(loc="upper left", bbox_to_anchor=(-0.1, -0.12), ncols=2)

    return draw


def _rows(name: str, profiles: dict[str, dict[str, Any]]) -> list[list[Any]]:
    rows = []
    for model, profile in profiles.items():
        for tokens in STYLES:
            columns = profile["layers"].get(tokens, {}).get(name, {"mean": []})
            intervals = columns.get("ci95") or [None] * len(columns["mean"])
            for layer, (mean, interval) in enumerate(zip(columns["mean"], intervals, strict=True)):
                between = "" if interval is None or mean is None else f"{interval[0]:.4g} to {interval[1]:.4g}"
                rows.append([model, tokens, layer, mean, between])
    return rows
