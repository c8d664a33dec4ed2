"""The report in sentences, from the numbers alone: the answer, each model's differences, and what limits them.

A difference counts if its p-value is below 0.05 after Holm's correction (the mean of the nine is a single test). All
others are "not distinguishable from zero", with the smallest difference that could have been detected.
"""

from collections import Counter
from typing import Any

from eval.data.benchmarks import BENCHMARKS
from eval.report.answer import by_score, corrected
from eval.report.finished_run import TITLES, FinishedRun, Line, probability
from eval.score.statistics import detectable
from eval.tables.table4 import TWO_SEEDS, ScoreEntry, direction
from modeling_aligned_llava.diagnostics.norm_profile.verdict import verdict


INERT = "Are the visual tokens inert?"
HELPS = "Does the norm help?"
WIDTH = 2 * 1.96  # standard errors in a 95 % interval
DETECTABLE = "detectable from"
UNPARSEABLE = 0.01  # share of unreadable answers above which it is reported

Part = tuple[str, list[str]]  # heading ("" if there is none) and sentences


def answer(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> list[Part]:
    """What a fine-tuning run answered; of any other run, whether tokens are inert and whether the norm helps.

    Args:
        measured: the result of `measurements.measure`.
    """
    if answered := run.answer:
        return [("", answered)]
    gains = {line.name: gain for line in run.lines if (gain := by_score(line)) is not None}
    helps = [f"{name}: {gain}" for name, gain in corrected(gains).items()]
    inert = [f"{name} is {verdict['summary']}." for name, verdict in _verdicts(measured).items()]
    parts = [(INERT, inert), (HELPS if helps else "", [_compared(run), *helps])]
    return [(heading, sentences) for heading, sentences in parts if sentences]


def caveats(run: FinishedRun, measured: dict[str, dict[str, Any]]) -> list[str]:
    """What the study found in such a decoder, and what the answer does not say."""
    verdicts = {} if run.answer else _verdicts(measured)
    notes: list[str] = next(iter(verdicts.values()))["lines"][-2:] if verdicts else []
    if run.is_toy:
        notes.append("This is a toy result: tiny models, benchmarks of their own. It says nothing about real sizes.")
    elif run.has_scores and not run.is_official:
        notes.append(
            "The questions are not those of the official benchmarks, or not all of them: do not compare these scores "
            "with published ones."
        )
    return notes


def _verdicts(measured: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Those of the models that were measured and have visual tokens."""
    verdicts = {name: verdict(measures["profile"]) for name, measures in measured.items() if "profile" in measures}
    return {name: judged for name, judged in verdicts.items() if judged is not None}


def _compared(run: FinishedRun) -> str:
    names = [line.name for line in run.lines]
    keys = [b.key for b in BENCHMARKS if any(b.key in line.answered for line in run.lines)]
    if not keys:
        return f"No benchmark has a score for {_listed(names)}."
    asked = [max(line.cells[key]["n"] for line in run.lines if key in line.answered) for key in keys]
    where = f"{len(keys)} benchmark{'s' * (len(keys) > 1)} with {sum(asked):,} questions in all"
    if len(names) == 1:
        return f"One model, {names[0]}, was evaluated on {where}. There is nothing to compare it with."
    if not run.baselines:
        return f"{_listed(names)} were evaluated on {where}, but no score could be compared with a baseline's."
    others = [line.name for line in run.lines if line.method != run.baselines.get(line.backbone)]
    return f"{_listed(others)} compared with {_listed(list(dict.fromkeys(run.baselines.values())))} on {where}."


def differences(run: FinishedRun) -> list[Part]:
    """How each model differs from the baseline."""
    return [
        (f"{line.name} against {baseline}", sentences)
        for line in run.lines
        if (sentences := _differences(baseline := run.baselines.get(line.backbone), line.cells))
    ]


def _differences(baseline: str | None, cells: dict[str, ScoreEntry]) -> list[str]:
    """A sentence each for the average and for the benchmarks that are lower, higher, and indistinguishable."""
    sentences = []
    average = cells.get("avg")
    if average is not None and average["delta"] is not None:
        sentences.append(f"Mean of the nine: {_average(average)}.")
    tested = [cells[b.key] for b in BENCHMARKS if b.key in cells and cells[b.key]["delta"] is not None]
    named = {cell["benchmark"]: f"{TITLES[cell['benchmark']]} ({cell['delta']:+.1f}" for cell in tested}
    if tested and not tested[0].get("seeds"):
        return [*sentences, f"By benchmark, not tested: {_listed([f'{name})' for name in named.values()])}."]
    for sign, word in ((-1, "lower"), (1, "higher")):
        if where := [f"{named[cell['benchmark']]})" for cell in tested if direction(cell) == sign]:
            title = f"Significantly {word} than {baseline} (p < 0.05 after Holm's correction)"
            sentences.append(f"{title}: {_listed(where)}.")
    if same := [f"{named[cell['benchmark']]}{_smallest(cell)})" for cell in tested if not direction(cell)]:
        sentences.append(f"Difference not distinguishable from zero: {_listed(same)}.")
    return sentences


def _average(cell: ScoreEntry) -> str:
    if cell["delta_ci95"] is None:
        return f"{cell['delta']:+.1f} points, an interval needs more seeds"
    low, high = cell["delta_ci95"]
    numbers = f"{cell['delta']:+.1f} points, 95 % interval {low:+.1f} to {high:+.1f}"
    if not cell.get("seeds"):
        return f"{numbers} over questions"
    way = {1: "higher", -1: "lower", 0: "difference not distinguishable from zero"}[direction(cell)]
    return f"{way} ({numbers}, {probability(cell['p_value'])})"


def _smallest(cell: ScoreEntry) -> str:
    low, high = cell["delta_ci95"] or (0.0, 0.0)
    return f"; {DETECTABLE} {detectable((high - low) / WIDTH):.1f}" if high > low else ""


def limitations(run: FinishedRun) -> list[str]:
    """What is missing, and what the numbers do not say."""
    limits = [f"{name}: no scores because its evaluation did not finish." for name in run.unscored]
    if not run.has_scores:
        return [*limits, "No benchmark was run: the answer rests on the loss on rows kept from training."]
    limits += [sentence for line in run.lines for sentence in _gaps(line)]
    for line in run.lines:
        unread = {key: cell["unparseable"] or 0 for key, cell in line.cells.items()}
        if where := [f"{TITLES.get(key, key)} {share:.1%}" for key, share in unread.items() if share > UNPARSEABLE]:
            limits.append(f"{line.name}: answers that could not be read and count as wrong: {_listed(where)}.")
    if any(DETECTABLE in sentence for _, sentences in differences(run) for sentence in sentences):
        limits.append(
            f'"{DETECTABLE.capitalize()}" is the smallest true difference that a test at p < 0.05, before Holm\'s '
            "correction, detects in 80 % of repetitions."
        )
    return limits + _seeds(run)


def _gaps(line: Line) -> list[str]:
    """What failed and what was not run, with the reasons."""
    cells = {key: cell for key, cell in line.cells.items() if key != "avg"}
    gaps = [
        f"{line.name}: {TITLES.get(key, key)} failed ({cell['reason']})."
        for key, cell in cells.items()
        if cell["status"] == "failed"
    ]
    absent: dict[str, list[str]] = {}
    for key, cell in cells.items():
        if cell["status"] == "not run":
            absent.setdefault(cell["reason"] or "no reason recorded", []).append(TITLES.get(key, key))
    gaps += [f"{line.name}: not run on {_listed(titles)} ({reason})." for reason, titles in absent.items()]
    if gaps and "avg" in line.cells and line.cells["avg"]["status"] != "ok":
        gaps.append(f"{line.name}: there is no mean of the nine because not all of them have a score.")
    return gaps


def _seeds(run: FinishedRun) -> list[str]:
    """What the intervals leave out because there are too few seeds, or other ones than the baseline's."""
    trainings = Counter((model.backbone, model.method) for model in run.models)
    once = [line.name for line in run.lines if trainings[line.backbone, line.method] == 1]
    limits = []
    if run.baselines and once:
        which = "per method" if len(once) == len(run.lines) else f"of {_listed(once)}"
        limits.append(
            f"One training {which}: the intervals cover the choice of questions. Another training may differ by more."
        )
    if any(len(line.seeds) == 2 for line in run.lines):
        limits.append(TWO_SEEDS)
    for line in run.lines:
        baseline = run.baselines.get(line.backbone)
        if baseline not in (None, line.method) and line.seeds and not _differences(baseline, line.cells):
            limits.append(
                f"{line.name}: no difference, because {baseline} does not have a score with each of these seeds."
            )
    return limits


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else ", ".join(words[:-1]) + f" and {words[-1]}"
