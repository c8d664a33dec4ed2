"""The summary at the top of the report: what was compared, and with what result, from the numbers alone.

A difference counts if its p-value is below 0.05 after Holm's correction (the mean of the nine is a single test). All
others are "not distinguishable from zero", with the smallest difference that could have been detected.
"""

from typing import Any

from eval.data.benchmarks import BENCHMARKS
from eval.report.card import is_official
from eval.report.finished_run import TITLES, FinishedRun, direction, probability
from eval.report.tables.table4 import ScoreEntry
from eval.scoring.power import detectable


WIDTH = 2 * 1.96  # standard errors in a 95 % interval
DETECTABLE = "detectable from"
UNPARSEABLE = 0.01  # share of unreadable answers above which it is reported

Part = tuple[str, list[str]]  # heading ("" for the first part) and sentences


def summary(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> list[Part]:
    """What was compared, how each model differs from the baseline, norms, and limitations.

    Args:
        measured: the result of `measurements.measure`.
    """
    first = [_compared(run)]
    if run.is_toy:
        first.append(
            "This is a toy result: tinyworld has tiny models and its own benchmarks. It says nothing about models of "
            "real size."
        )
    elif not is_official([cell for cells in run.cells.values() for cell in cells.values()], run.data() or run.folder):
        first.append(
            "The questions are not those of the official benchmarks, or not all of them: do not compare these scores "
            "with published ones."
        )
    parts = [("", first)]
    for model in run.models:
        differences = _differences(run.baseline, run.cells[model.name])
        if differences:
            parts.append((f"{model.name} against {run.baseline}", differences))
    norms = [
        f"{name}: {_times(found['profile']['ratio'])} times." for name, found in measured.items() if "profile" in found
    ]
    if norms:
        parts.append(("Mean norm of visual tokens at the decoder input, over that of text embeddings", norms))
    limits = [f"{name}: no scores because its evaluation did not finish." for name in run.unscored]
    limits += [sentence for model in run.models for sentence in _gaps(model.name, run.cells[model.name])]
    limits += [sentence for model in run.models for sentence in _unparseable(model.name, run.cells[model.name])]
    if any(DETECTABLE in sentence for _, sentences in parts for sentence in sentences):
        limits.append(
            f'"{DETECTABLE.capitalize()}" is the smallest true difference that a test at p < 0.05, before Holm\'s '
            "correction, detects in 80 % of repetitions."
        )
    if run.baseline is not None and len({model.seed for model in run.models}) == 1:
        limits.append("One training per method: the intervals cover the choice of questions, not another training.")
    return [*parts, ("What is missing, and limitations", limits)] if limits else parts


def _compared(run: FinishedRun) -> str:
    names = [model.name for model in run.models]
    keys = [b.key for b in BENCHMARKS if any(b.key in run.answered(name) for name in names)]
    if not keys:
        return f"No benchmark has a score for {_listed(names)}."
    asked = [max(run.cells[name][key]["n"] for name in names if key in run.answered(name)) for key in keys]
    where = f"{len(keys)} benchmark{'s' * (len(keys) > 1)} with {sum(asked):,} questions in all"
    if len(names) == 1:
        return f"One model, {names[0]}, was evaluated on {where}. There is nothing to compare it with."
    if run.baseline is None:
        return f"{_listed(names)} were evaluated on {where}, but no score could be compared with a baseline's."
    others = [model.name for model in run.models if model.method != run.baseline]
    return f"{_listed(others)} compared with {run.baseline} on {where}."


def _differences(baseline: str | None, cells: dict[str, ScoreEntry]) -> list[str]:
    """A sentence each for the average and for the benchmarks that are lower, higher, and indistinguishable."""
    found = []
    average = cells.get("avg")
    if average is not None and average["delta"] is not None:
        found.append(f"Mean of the nine: {_average(average)}.")
    tested = [cells[b.key] for b in BENCHMARKS if b.key in cells and cells[b.key]["delta"] is not None]
    for sign, word in ((-1, "lower"), (1, "higher")):
        where = [f"{TITLES[cell['benchmark']]} ({cell['delta']:+.1f})" for cell in tested if direction(cell) == sign]
        if where:
            found.append(f"Significantly {word} than {baseline} (p < 0.05 after Holm's correction): {_listed(where)}.")
    same = [
        f"{TITLES[cell['benchmark']]} ({cell['delta']:+.1f}{_smallest(cell)})"
        for cell in tested
        if direction(cell) == 0
    ]
    if same:
        found.append(f"Difference not distinguishable from zero: {_listed(same)}.")
    return found


def _average(cell: ScoreEntry) -> str:
    low, high = cell["delta_ci95"]
    numbers = f"{cell['delta']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}, {probability(cell['p_value'])}"
    if direction(cell) == 0:
        return f"difference not distinguishable from zero ({numbers})"
    return f"{'higher' if cell['delta'] > 0 else 'lower'} ({numbers})"


def _smallest(cell: ScoreEntry) -> str:
    low, high = cell["delta_ci95"]
    return f"; {DETECTABLE} {detectable((high - low) / WIDTH):.1f}" if high > low else ""


def _gaps(name: str, cells: dict[str, ScoreEntry]) -> list[str]:
    """What failed and what was not run, with the reasons."""
    found = [
        f"{name}: {TITLES.get(key, key)} failed ({cell['reason']})."
        for key, cell in cells.items()
        if cell["status"] == "failed" and key != "avg"
    ]
    absent: dict[str, list[str]] = {}
    for key, cell in cells.items():
        if cell["status"] == "not run" and key != "avg":
            absent.setdefault(cell["reason"] or "no reason recorded", []).append(TITLES.get(key, key))
    found += [f"{name}: not run on {_listed(titles)} ({reason})." for reason, titles in absent.items()]
    average = cells.get("avg")
    if found and average is not None and average["status"] != "ok":
        found.append(f"{name}: there is no mean of the nine because not all of them have a score.")
    return found


def _unparseable(name: str, cells: dict[str, ScoreEntry]) -> list[str]:
    where = [
        f"{TITLES.get(key, key)} {cell['unparseable']:.1%}"
        for key, cell in cells.items()
        if (cell["unparseable"] or 0) > UNPARSEABLE
    ]
    return [f"{name}: answers that could not be read and count as wrong: {_listed(where)}."] if where else []


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}"
