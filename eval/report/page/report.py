"""A self-contained page about a finished run, RUN/report.html.

It has a summary, scores, curves, attention and settings. The page loads nothing from elsewhere. If all else
is gone it is made from scores.json alone. The same run gives the same bytes.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.axes import Axes

from eval.report.finished_run import FinishedRun
from eval.report.page import score_table, settings
from eval.report.page.inline_svg import Drawing, inline_svg, series
from eval.report.page.layer_curves import layer_curves
from eval.report.page.measurements import measure
from eval.report.page.summary import answer, caveats, differences, limitations
from eval.report.page.training_curves import training
from eval.report.tables.differences import HEADINGS, plot_differences
from eval.report.tables.footnotes import departures
from eval.report.tables.table4 import columns, notes
from modeling_aligned_llava.loading.files import write_text


TEMPLATES = Path(__file__).parent / "templates"


def report(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> str:
    """The page as HTML.

    Args:
        measured: the result of `measurements.measure`.
    """
    colours = {model.name: number for number, model in enumerate(run.models)}
    profiles = {name: found["profile"] for name, found in measured.items() if "profile" in found}
    firsts = {(model.backbone, model.method): model.name for model in reversed(run.models)}  # of each method's seeds
    stages, training_notes = training(run, colours)
    script = _asset("report.js")
    return (
        _environment()
        .get_template("report.html.jinja")
        .render(
            run=run,
            title=f"{run.folder.resolve().name}: {' · '.join(line.name for line in run.lines)}",
            style=_asset("report.css"),
            script=script,
            script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
            answer=answer(run, measured),
            caveats=caveats(run, measured),
            compared=differences(run),
            limits=limitations(run),
            columns=list(columns(run.rows).values()),
            scores=score_table.measured(run, run.lines) if run.has_scores else [],
            single_seeds=score_table.measured(run, run.single_seeds),
            notes=[*notes(run.rows), *departures(run.record)] if run.has_scores else [],
            paper=score_table.published(run),
            differences=_differences(run),
            everything=(score_table.ALL, score_table.everything(run)),
            measured=measured,
            layers=layer_curves({name: profiles[name] for name in profiles if name in firsts.values()}, colours),
            norms=_norms(profiles),
            stages=stages,
            training_notes=training_notes,
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
    environment.globals["zip"] = zip
    environment.filters["shown"] = shown
    environment.filters["percent"] = lambda share: f"{share:.0%}" if share >= 0.1 else f"{share:.1%}"
    return environment


def _asset(name: str) -> Markup:
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))  # our own files  # noqa: S704


def shown(value: Any) -> str:
    """A readable number: four digits, thousands separated; empty for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _differences(run: FinishedRun) -> Drawing | None:
    compared = {
        line.name: found
        for line in run.lines
        if (found := [row for row in line.cells.values() if row["delta"] is not None and row["benchmark"] in HEADINGS])
    }
    if not compared:
        return None
    title = "Difference from the baseline, points, with 95 % interval"
    of_lines = {line.name: series(number) for number, line in enumerate(run.lines)}

    def draw(axes: Axes) -> None:
        plot_differences(axes, compared, of_lines)
        axes.set_xlabel("points")

    svg = inline_svg("differences", title, draw, (5.2, 4.6))
    return Drawing(title, svg, [], [])


def _norms(profiles: dict[str, dict[str, Any]]) -> list[list[Any]]:
    """By model: mean norm of visual tokens at layer 0 and of text embeddings, their ratios, number of images."""
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


def write_report(folder: Path) -> None:
    """Write `report.html` of the finished run in `folder`.

    Raises:
        UserError: the run has no scores.
    """
    run = FinishedRun.read(folder)
    text = report(run, measure(run))
    path = folder / "report.html"
    write_text(path, text.encode(errors="replace").decode())  # an answer may end in half a character
    print(f"report: {path}")  # noqa: T201
