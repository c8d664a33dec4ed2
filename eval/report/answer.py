"""The answer of a fine-tuning run: are the model's visual tokens inert, and does aligning their norm help?

A difference is shown if p < 0.05 over seeds, after Holm's correction over the methods; otherwise the answer says "not
shown", or that an interval needs more seeds.
"""

import json
import math
from dataclasses import dataclass, replace
from typing import Any

from eval.data.benchmarks import BENCHMARKS, TITLES
from eval.plan.models import START, Models
from eval.report.finished_run import FinishedRun, Line, probability
from eval.score import seeds
from eval.score.statistics import NO_SPREAD, holm
from eval.tables.table4 import direction
from modeling_aligned_llava.diagnostics.norm_profile.verdict import verdict
from modeling_aligned_llava.errors import UserError


INERT = {"yes": "Yes", "no": "No", "in part": "In some layers"}


@dataclass(frozen=True)
class Difference:
    """A method against the baseline: a positive `value` is better, as are those of the 95 % `interval`.

    Attributes:
        unit: "points" of a score or "nats" of a held-out loss, of which less is better.
        p: over seeds, corrected for the number of methods by `corrected`; None: too few seeds for one.
    """

    method: str
    value: float
    interval: tuple[float, float] | None
    unit: str
    p: float | None
    where: str = ""

    @property
    def sign(self) -> int:
        """1 or -1 if the method is better or worse, 0 if neither is shown."""
        return 0 if self.p is None or self.p >= 0.05 else 1 if self.value > 0 else -1

    def __str__(self) -> str:
        shown = "needs more seeds" if self.p is None else {1: "better", -1: "worse", 0: "not shown"}[self.sign]
        in_points, way = self.unit == "points", 1 if self.value >= 0 else -1
        digits, words = (".1f", ("lower", "higher")) if in_points else (".2g", ("loss higher", "loss lower"))
        bounds = ", ".join(f"{way * bound:{digits}}" for bound in (self.interval or ())[::way])
        interval = f" [{bounds}]" if bounds else ""
        p = "" if self.p is None else f", {probability(self.p)}"
        return f"{shown}; {words[way > 0]} by {way * self.value:{digits}} {self.unit}{interval}{p}{self.where}."


def corrected(differences: dict[str, Difference]) -> dict[str, Difference]:
    """The same with p-values that hold for all of them together (Holm)."""
    tested = {name: difference.p for name, difference in differences.items() if difference.p is not None}
    adjusted = zip(tested, holm(list(tested.values())), strict=True)
    return differences | {name: replace(differences[name], p=p) for name, p in adjusted}


def answer(
    name: str,
    profile: dict[str, Any],
    losses: dict[str, dict[int, float]],
    run: FinishedRun | None,
    methods: list[str],
) -> list[str]:
    """A few lines, one of them for each method.

    Args:
        name: of the model.
        profile: of the model as it is.
        losses: method -> seed -> held-out loss.
        run: the benchmarks' scores; None: there are none.
        methods: those trained, the baseline first.
    """
    baseline, others = methods[0], methods[1:]
    lines = {line.method: line for line in run.lines} if run else {}
    scored = {method: gain for method in others if method in lines and (gain := by_score(lines[method]))}
    by_loss = _by_loss(losses, baseline, others)
    benchmarked = len(scored) == len(others)
    measured = corrected(scored if benchmarked else by_loss)
    count, by = len(losses.get(baseline, {})), "benchmarks" if benchmarked else "held-out loss"
    tested = f" (p after Holm's correction over {len(others)} methods)" if len(others) > 1 else ""
    judged = verdict(profile)
    inert = "Unknown: they could not be told from text"
    if judged is not None:
        inert = f"{INERT[judged['inert']]}: {judged['summary'].partition(': ')[2]}"
    answered = [
        f"Are the visual tokens of {name} inert? {inert}.",
        f"Does the norm help? Against {baseline}, trained on the same rows, by {by}, "
        f"{count} seed{'s' * (count != 1)}{tested}:",
    ]
    answered += [f"  {method}: {gain}" for method, gain in measured.items()] or ["  Not shown: nothing was measured."]
    answered += [f"  {method}: nothing was measured." for method in others if measured and method not in measured]
    means = {method: line.cells["avg"]["score"] for method, line in lines.items() if "avg" in line.cells}
    if means.get(START) is not None and means.get(baseline) is not None:  # what fine-tuning did without any norm
        tuning = f"{START} {means[START]:.1f}, {baseline} {means[baseline]:.1f}"
        answered.append(f"Fine-tuning itself: {tuning} in the mean.")
    missing = "" if benchmarked else "benchmarks (give --data), "
    return [
        *answered,
        f"Recommendation: {_recommendation(list(measured.values()), baseline)}",
        f"Not covered: {missing}other data, longer training, and other learning rates: all methods had those of the "
        "recipe.",
    ]


def by_score(line: Line) -> Difference | None:
    """From the baseline, in the mean over the nine benchmarks or in the only one that was run; None in between."""
    columns = [line.cells[b.key] for b in BENCHMARKS if b.key in line.cells and line.cells[b.key]["delta"] is not None]
    average = line.cells.get("avg")
    if average is None or average["delta"] is None:
        if len(columns) != 1:
            return None
        average = columns[0]
    interval = average["delta_ci95"] and tuple(average["delta_ci95"])
    if not line.seeds:
        where = " over the questions of one training"
        return Difference(line.method, average["delta"], interval, "points", None, where)
    marked = [f"{TITLES[cell['benchmark']]} {cell['delta']:+.1f}" for cell in columns if direction(cell)]
    where = f"; significant in {', '.join(marked) or 'no single benchmark'}"
    return Difference(line.method, average["delta"], interval, "points", average["p_value"], where)


def held_out_losses(models: Models) -> dict[str, dict[int, float]]:
    """Method -> seed -> mean loss on the rows kept from training, after the last step.

    Raises:
        UserError: a loss is not finite.
    """
    losses: dict[str, dict[int, float]] = {}
    for model in models.values():
        log = model.folder / "log.jsonl"
        text = log.read_text(encoding="utf-8") if log.is_file() else ""
        measured = [line["eval_loss"] for line in map(json.loads, text.splitlines()) if "eval_loss" in line]
        if measured and not math.isfinite(measured[-1]):
            raise UserError(f"{log}: the held-out loss is {measured[-1]}: the training diverged; lower learning_rates")
        if measured and model.seed is not None:
            losses.setdefault(model.method, {})[model.seed] = measured[-1]
    return losses


def _by_loss(losses: dict[str, dict[int, float]], baseline: str, methods: list[str]) -> dict[str, Difference]:
    """Paired by seed: how much lower the loss of each method is. They share the variance between trainings."""
    reference = losses.get(baseline, {})
    paired = {
        method: [reference[seed] - loss for seed, loss in sorted(losses.get(method, {}).items()) if seed in reference]
        for method in methods
    }
    several = {method: seeds.of_numbers(gains) for method, gains in paired.items() if len(gains) > 1}
    means = dict(zip(several, seeds.shared(list(several.values())), strict=True))
    differences = {}
    for method, gains in paired.items():
        mean = means.get(method)
        if mean is not None and mean.standard_error > NO_SPREAD:
            differences[method] = Difference(method, mean.value, mean.ci95, "nats", mean.p_value)
        elif gains:
            differences[method] = Difference(method, sum(gains) / len(gains), None, "nats", None)
    return differences


def _recommendation(differences: list[Difference], baseline: str) -> str:
    better = [difference for difference in differences if difference.sign > 0]
    if better:
        return f"train this model with {max(better, key=lambda difference: difference.value).method}."
    if differences and all(difference.sign < 0 for difference in differences):
        return f"leave the norm out: {baseline} is better."
    return f"none for the norm: no gain over {baseline} is shown. More seeds narrow the intervals."
