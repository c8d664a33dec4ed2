"""The law of the lift: which quantity predicts what a norm does to the held-out loss of decoders not seen before.

For a study whose arms vary `lift`. Each candidate is fitted by monotone regression to all decoders but one, and its
error is that on the decoder left out.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

from research.study.records import final_loss


LIFT = "lift"
TO_STREAM, TARGET = "baseline's visual tokens / text in layer 1", "target / text in layer 1"
RATIOS = (LIFT, TO_STREAM, TARGET)  # candidates in natural logarithms
Record = dict[str, Any]
Arm = dict[str, float]


def law(by_arm: dict[str, list[Record]], reference: str) -> dict[str, Any] | None:
    """Effects, candidates and their errors; None for a study without lifts.

    Returns:
        `arms`: label -> the arm's candidates and `effect`, its held-out loss minus the reference's at the same lift
        (mean over the seeds that both have). `errors`: candidate -> `left_out`, the mean absolute error in nats, and
        `rank`, Spearman's correlation with the effect; `constant` predicts the mean of the other decoders.
    """
    references = {own[0]["levels"].get(LIFT): own for own in by_arm.values() if own[0]["method"] == reference}
    arms = {}
    for label, own in by_arm.items():
        lift = own[0]["levels"].get(LIFT)
        if lift is None or own[0]["method"] == reference or lift not in references:
            continue
        against = {record["seed"]: record for record in references[lift]}
        pairs = [(record, against[record["seed"]]) for record in own if record["seed"] in against]
        effects = [final_loss(record) - final_loss(other) for record, other in pairs]
        if effects and all(map(math.isfinite, effects)):
            measured = [_candidates(record, other) for record, other in pairs]
            means = {name: float(np.mean([each[name] for each in measured])) for name in measured[0]}
            arms[label] = {**means, "effect": float(np.mean(effects)), "decoder": float(lift)}
    if len({arm["decoder"] for arm in arms.values()}) < 3:
        return None
    return {"arms": arms, "errors": _errors(list(arms.values()))}


def _candidates(record: Record, reference: Record) -> Arm:
    profile, start = (_profiles(each)[i] for each, i in ((reference, -1), (record, 0)))
    text, visual = profile["text"]["norm"], profile["visual"]["norm"][0]
    return {
        LIFT: math.log(text[1] / text[0]),
        TO_STREAM: math.log(visual / text[1]),
        "layer where the baseline's tokens meet text": float(
            next((i for i, t in enumerate(text) if t >= visual), len(text))
        ),
        "baseline's visual cosine": float(np.mean(profile["visual"]["cosine"])),
        TARGET: math.log(start["visual"]["norm"][0] / start["text"]["norm"][1]),
    }


def _profiles(record: Record) -> list[dict[str, Any]]:
    return list(record["stages"].values())[-1]["profile"]


def _errors(arms: list[Arm]) -> dict[str, dict[str, float]]:
    effect, decoder = (np.array([arm[name] for arm in arms]) for name in ("effect", "decoder"))
    names = [name for name in arms[0] if name not in ("effect", "decoder")]
    found = {}
    for name in names:
        x = np.array([arm[name] for arm in arms])
        rank = float(spearmanr(x, effect).statistic) if len(set(x)) > 1 else 0.0
        found[name] = {
            "left_out": _left_out(effect, decoder, partial(_predicted, x, effect)),
            "rank": rank,
        }
    constant = _left_out(effect, decoder, lambda seen: np.full(len(effect), effect[seen].mean()))
    return {**found, "constant": {"left_out": constant, "rank": 0.0}}


def _left_out(effect: np.ndarray, decoder: np.ndarray, predict: Callable[[np.ndarray], np.ndarray]) -> float:
    """Mean absolute error on decoders that `predict` has not seen; it gets the arms that it may see."""
    errors = [np.abs(predict(decoder != own)[decoder == own] - effect[decoder == own]) for own in np.unique(decoder)]
    return float(np.concatenate(errors).mean())


def _predicted(x: np.ndarray, effect: np.ndarray, seen: np.ndarray) -> np.ndarray:
    return _monotone(x[seen], effect[seen])(x)


def _monotone(x: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Monotone regression, in the direction of the rank correlation; constant outside the range of x."""
    order = np.argsort(x, kind="stable")
    rising = len(set(x)) < 2 or spearmanr(x, y).statistic >= 0
    fitted = isotonic_regression(y[order], increasing=bool(rising)).x
    return lambda new: np.interp(new, x[order], fitted)


def draw_law(axes: Axes, found: dict[str, Any]) -> None:
    """The effect of every arm against the best candidate, by decoder, with its monotone fit."""
    errors = {name: each["left_out"] for name, each in found["errors"].items() if name != "constant"}
    best = min(errors, key=lambda name: errors[name])
    shown: Callable[[np.ndarray], np.ndarray] = np.exp if best in RATIOS else np.asarray
    arms = list(found["arms"].values())
    for decoder in sorted({arm["decoder"] for arm in arms}):
        own = [arm for arm in arms if arm["decoder"] == decoder]
        x = shown(np.array([arm[best] for arm in own]))
        axes.plot(x, [arm["effect"] for arm in own], "o", label=f"lift {decoder:g}")
    x, y = (np.array([arm[name] for arm in arms]) for name in (best, "effect"))
    grid = np.linspace(x.min(), x.max(), 200)
    axes.plot(shown(grid), _monotone(x, y)(grid), "k-", linewidth=1)
    axes.axhline(0, color="grey", linewidth=0.8)
    axes.set(xlabel=best, ylabel="held-out loss minus baseline, nats", xscale="log" if best in RATIOS else "linear")
    axes.legend(fontsize="small")
