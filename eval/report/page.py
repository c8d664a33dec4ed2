"""A self-contained page about a finished run, RUN/report.html.

It has a summary, scores, curves, attention and settings. The page loads nothing from elsewhere. If all else
is gone it is made from scores.json alone. The same run gives the same bytes.
"""

import base64
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from eval.report.card import setting_rows, stage_settings
from eval.report.drawings import differences_figure, layer_curves, training_curves
from eval.report.finished_run import TITLES, FinishedRun, Line, probability, without_paths
from eval.report.measurements import measure
from eval.report.sentences import answer, caveats, differences, limitations
from eval.tables.table4 import PAPER_SUFFIX, ScoreEntry, direction, missing
from modeling_aligned_llava.loading.files import write_text


TEMPLATES = Path(__file__).parent / "templates"
EVERYTHING = ["model", "benchmark", "score", "95 % interval", "n", "difference", "its 95 % interval"]
EVERYTHING += ["p", "p after Holm", "unreadable", "state"]


def report(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> str:
    """The page as HTML.

    Args:
        measured: the result of `measurements.measure`.
    """
    colours = {model.name: number for number, model in enumerate(run.models)}
    profiles = {name: measures["profile"] for name, measures in measured.items() if "profile" in measures}
    firsts = {(model.backbone, model.method): model.name for model in reversed(run.models)}  # of each method's seeds
    stages, training_notes = training_curves(run, colours)
    layers = layer_curves({name: profiles[name] for name in profiles if name in firsts.values()}, colours)
    gains = differences_figure(run)
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
    style, script = ((TEMPLATES / f"report.{kind}").read_text(encoding="utf-8") for kind in ("css", "js"))
    return environment.get_template("report.html.jinja").render(
        run=run,
        title=f"{run.folder.resolve().name}: {' · '.join(line.name for line in run.lines)}",
        style=Markup(style),  # our own files  # noqa: S704
        script=Markup(script),  # noqa: S704
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        answer=answer(run, measured),
        caveats=caveats(run, measured),
        compared=differences(run),
        limits=limitations(run),
        columns=list(run.table.columns.values()),
        scores=measured_scores(run, run.lines) if run.has_scores else [],
        single_seeds=measured_scores(run, run.single_seeds),
        notes=run.table.notes if run.has_scores else [],
        paper=published_scores(run),
        differences=gains,
        everything=(EVERYTHING, every_number(run)),
        measured=measured,
        layers=layers,
        norms=[_norms(name, profile) for name, profile in profiles.items()],
        stages=stages,
        training_notes=training_notes,
        settings=settings(run),
        recipes=recipes(run),
    )


def shown(value: Any) -> str:
    """A readable number: four digits, thousands separated; empty for None."""
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _norms(name: str, profile: dict[str, Any]) -> list[Any]:
    """Of a model: mean norm of visual tokens at layer 0 and of text embeddings, their ratios, number of images."""
    means = [profile["norms"][tokens]["mean"] for tokens in ("visual tokens at layer 0", "text embeddings")]
    return [name, *means, profile["ratio"], profile["median_ratio"], profile["images"]]


@dataclass(frozen=True)
class Cell:
    """A cell of the table. `details` are shown on hover and on focus, and read by a screen reader."""

    score: str
    value: float | None = None  # sort key
    difference: str = ""
    direction: int = 0
    details: str = ""


def measured_scores(run: FinishedRun, lines: list[Line]) -> list[tuple[str, list[Cell]]]:
    """Each line's name and the cells of Table 4's columns."""
    return [(line.name, [_cell(line.cells.get(key)) for key in run.table.columns]) for line in lines]


def published_scores(run: FinishedRun) -> list[tuple[str, list[Cell]]]:
    """The lines of the paper: scores without intervals."""
    return [
        (label.removesuffix(PAPER_SUFFIX), [_cell(cells.get(key)) for key in run.table.columns])
        for label, cells in run.table.paper
    ]


def _cell(row: ScoreEntry | None) -> Cell:
    absent = missing(row)
    if row is None or absent is not None:
        return Cell(absent or "not run")
    seeds = row.get("seeds", ())
    details = [f"n = {row['n']:,}" + (f", mean over seeds {', '.join(map(str, seeds))}" if seeds else "")]
    if row["source"] == "measured":
        details.insert(0, f"95 % interval {_interval(row['ci95'])}")
    if row["delta"] is None:
        return Cell(f"{row['score']:.1f}", row["score"], details="; ".join(details))
    sign = direction(row)
    details.append(f"difference {row['delta']:+.1f}, 95 % interval {_interval(row['delta_ci95'], '+')}")
    if seeds and row["p_value"] is not None:
        details.append(probability(row["p_value"]))
        if row["p_holm"] is not None:
            details.append(f"{probability(row['p_holm'])} after Holm's correction")
        details.append("significant" if sign else "not distinguishable from zero")
    mark = "*" if sign else ""
    return Cell(f"{row['score']:.1f}", row["score"], f"{row['delta']:+.1f}{mark}", sign, "; ".join(details))


def every_number(run: FinishedRun) -> list[list[Any]]:
    """Every measured row of scores.json as a line with the columns of `EVERYTHING`."""
    lines = []
    for line in [*run.lines, *run.single_seeds]:
        for key, row in line.cells.items():
            state = row["status"] if row["reason"] is None else f"{row['status']}: {row['reason']}"
            of_score, of_delta = (
                "" if row[value] is None else _interval(row[ends])
                for value, ends in (("score", "ci95"), ("delta", "delta_ci95"))
            )
            numbers = [row["score"], of_score, row["n"], row["delta"], of_delta, row["p_value"], row["p_holm"]]
            lines.append([line.name, TITLES.get(key, key), *numbers, row["unparseable"], state])
    return lines


def _interval(ends: list[float] | None, sign: str = "") -> str:
    return "needs more seeds" if ends is None else f"{ends[0]:{sign}.1f} to {ends[1]:{sign}.1f}"


def settings(run: FinishedRun) -> dict[str, list[list[Any]]]:
    """Title -> lines of (name, value); none without a record."""
    record = run.record
    if not record:
        return {}
    data = record["data"]["tasks"].items()
    return {
        "Evaluation": [[name, _setting(value)] for name, value in record["settings"].items()],
        "Versions": [*map(list, record["versions"].items()), ["code", record["code"] or "not recorded"]],
        "Hardware": [[name, _setting(value)] for name, value in record["hardware"].items()],
        "Checkpoints (sha256)": [[name, model["sha256"]] for name, model in record["models"].items()],
        "Data (rows, sha256)": [[key, f"{task['rows']:,} rows, {task['sha256']}"] for key, task in data],
    }


def recipes(run: FinishedRun) -> tuple[list[str], list[list[str]]]:
    """Header and lines of a table of training settings, one column per model and stage; no lines without settings."""
    stages = {}
    for model in run.models:
        checkpoint = run.checkpoints[model.name]
        for stage, recipe in (stage_settings(checkpoint) if checkpoint else {}).items():
            stages[f"{model.name}, {stage}"] = recipe
    lines = [[name.replace("_", " "), *map(_setting, values)] for name, values in setting_rows(stages).items()]
    return ["setting", *stages], lines


def _setting(value: Any) -> str:
    if value is None or value == []:
        return "none"
    return without_paths(", ".join(map(str, value)) if isinstance(value, list) else str(value))


def write_report(run: FinishedRun) -> None:
    """Write `report.html` into the folder of the run."""
    text = report(run, measure(run))
    path = run.folder / "report.html"
    write_text(path, text.encode(errors="replace").decode())  # an answer may end in half a character
    print(f"report: {path}")  # noqa: T201
