"""One self-contained page of a finished run: `python -m eval.report.page results/RUN` writes RUN/report.html.

Scores, curves, attention, answers and settings, with a summary in words. It asks for nothing outside itself, can be
made from scores.json alone if all else is gone, and is the same file to the byte for the same run.
"""

import argparse
import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes

from eval.report.finished_run import FinishedRun, without_paths
from eval.report.page import measurements as looks
from eval.report.page import score_table as comparison
from eval.report.page import settings
from eval.report.page.attention_overlays import Overlay, overlays
from eval.report.page.examples import examples
from eval.report.page.inline_svg import Figure, inline_svg, series
from eval.report.page.layer_curves import layer_curves
from eval.report.page.summary import summary
from eval.report.page.training_curves import LEDGER, training
from eval.report.tables.differences import TITLES, plot_differences
from eval.report.tables.table4 import columns
from eval.run.files import write_text
from modeling_aligned_llava.errors import UserError, run_main


TEMPLATES = Path(__file__).parent / "templates"


def report(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> str:
    """The page as text.

    Args:
        measured: what `looks.measure` found.
    """
    colours = {arm.name: number for number, arm in enumerate(run.arms)}
    profiles = {name: look["profile"] for name, look in measured.items() if "profile" in look}
    overlaid, overlay_note = _overlays(run, measured)
    stages, training_notes = training(run, colours)
    shown, example_notes = examples(run)
    script = _asset("report.js")
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            run=run,
            title=f"{run.folder.resolve().name}: {', '.join(arm.name for arm in run.arms)}",
            style=_asset("report.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            parts=summary(run, measured),
            columns=list(columns(run.rows).values()),
            scores=comparison.measured(run),
            paper=comparison.published(run),
            differences=_differences(run, colours),
            everything=(comparison.ALL, comparison.everything(run)),
            measured=measured,
            layers=layer_curves(profiles, colours),
            norms=_norms(profiles),
            overlays=overlaid,
            overlay_note=overlay_note,
            layer_names=list(dict.fromkeys(layer.name for o in overlaid for arm in o.arms.values() for layer in arm)),
            stages=stages,
            ledger_heads=LEDGER,
            training_notes=training_notes,
            examples=shown,
            example_notes=example_notes,
            settings=settings.settings(run),
            recipes=settings.recipes(run),
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["shown"] = shown
    environment.filters["percent"] = lambda share: f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    return environment


def _asset(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # noqa: S704  our own files


def shown(value: Any) -> str:
    """A number for people: four digits, thousands apart; nothing for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _differences(run: FinishedRun, colours: dict[str, int]) -> Figure | None:
    arms = {
        name: found
        for name, cells in run.cells.items()
        if (found := [cell for cell in cells.values() if cell["delta"] is not None and cell["benchmark"] in TITLES])
    }
    if not arms:
        return None
    title = "Difference from the baseline arm, points, with 95 % interval"
    of_arms = {name: series(number) for name, number in colours.items()}

    def draw(axes: Axes) -> None:
        plot_differences(axes, arms, of_arms)
        axes.set_ylabel("points")

    svg = inline_svg("differences", title, draw, (9, 4))
    return Figure(title, svg, [], [])


def _norms(profiles: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """By arm: mean norm of visual tokens at layer 0 and of text embeddings, their ratio, and how many pictures."""
    return [
        [
            name,
            profile["norms"]["visual tokens at layer 0"]["mean"],
            profile["norms"]["text embeddings"]["mean"],
            profile["ratio"],
            profile["median_ratio"],
            profile["images"],
        ]
        for name, profile in profiles.items()
    ]


def _overlays(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> tuple[list[Overlay], str]:
    """The overlays, or why there are none."""
    if not any("attention" in look for look in measured.values()):
        return [], "The attention of no arm was measured."
    try:
        found = overlays(looks.pictures(run), measured)
    except UserError as error:
        return [], f"The pictures cannot be shown: {without_paths(str(error))}."
    return (
        found,
        ""
        if found
        else "The visual tokens of these models are no single grid: there is no map to lay over a picture.",
    )


def write(folder: Path) -> None:
    """Write the report of the finished run in `folder`.

    Raises:
        UserError: the run has no scores.
    """
    run = FinishedRun.read(folder)
    text = report(run, looks.measure(run))
    path = folder / "report.html"
    write_text(path, text.encode(errors="replace").decode())  # a model can answer with half a character
    print(f"report: {path}")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.report.page", description=__doc__.split("\n\n")[0])
    parser.add_argument("run", type=Path, help="folder of the run, e.g. results/tinyworld")
    write(parser.parse_args().run)


if __name__ == "__main__":
    run_main(main)
