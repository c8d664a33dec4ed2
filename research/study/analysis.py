"""From the records of a study to its numbers and tables: means over seeds, paired differences, stability, scores.

Held-out losses: a mean over seeds with Student's t; an arm minus the reference, seed by seed, because a seed has the
same projector, data order and held-out rows in every arm. Scores: `eval.score`, with intervals of seeds and items.
"""

import math
from collections import defaultdict
from dataclasses import asdict
from statistics import median
from typing import Any

import numpy as np

from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.score.scores import Model, score_rows
from modeling_aligned_llava.diagnostics.attention import ATTENTION_NUMBERS
from modeling_aligned_llava.diagnostics.instruments.tables import markdown_table, number, show_table
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json, write_text
from research.study.grid import Study
from research.study.information_tables import information_tables
from research.study.law import law
from research.study.records import Records, final_loss
from research.study.table import Table, interval, shown


SPIKE, BEFORE = 1.5, 5  # a logged loss above 1.5 times the median of the five before it
Record = dict[str, Any]


def analyse(study: Study, records: Records) -> dict[str, Any]:
    """Write the tables of a study into tables.md beside its records, and print them.

    Returns:
        The numbers of the tables and figures.

    Raises:
        UserError: no cell has finished.
    """
    by_arm, decoder = records_by_arm(study, records), read_json(records.decoder) or {}
    found: dict[str, Any] = {
        "study": study.name,
        "backbone": study.backbone,
        "reference": study.reference,
        "cells": {"finished": sum(map(len, by_arm.values())), "planned": len(study.cells)},
        "arms": {label: _arm(own, _reference(study, by_arm, own[0]), decoder) for label, own in by_arm.items()},
        "contrasts": {name: _contrast(weights, by_arm) for name, weights in study.contrasts.items()},
        "scores": _scores(study, records, by_arm),
    }
    if (found_law := law(by_arm, study.reference)) is not None:
        found["law"] = found_law
    tables = information_tables(records, study.reference)
    tables += [table for table in (make(study, found) for make in TABLES) if table.rows]
    for table in tables:
        show_table(table.title, table.heads, table.rows)
    written = [f"## {table.title}\n\n{markdown_table(table.heads, table.rows)}\n" for table in tables]
    write_text(records.folder / "tables.md", f"# {study.name}\n\n" + "\n".join(written))
    return found


def records_by_arm(study: Study, records: Records) -> dict[str, list[Record]]:
    """Label -> its records by seed, in the order of the study; arms without a record are absent.

    Raises:
        UserError: there is none.
    """
    found: dict[str, list[Record]] = defaultdict(list)
    for record in records.read():
        found[record["arm"]].append(record)
    if not found:
        raise UserError(f"{records.folder}: no cell has finished: run the study first")
    order = [arm.label for arm in study.arms]
    return {label: sorted(found[label], key=lambda record: record["seed"]) for label in order if label in found}


def _reference(study: Study, by_arm: dict[str, list[Record]], own: Record) -> dict[int, Record]:
    """What the arm of `own` is compared with, by seed: of the reference's arms, that which shares most of its levels.

    None of its levels is one that `own` does not have.
    """
    shared = [
        records
        for records in by_arm.values()
        if (first := records[0])["method"] == study.reference
        and first["levels"].items() <= own["levels"].items()
        and first["arm"] != own["arm"]
    ]
    nearest = max(shared, key=lambda records: len(records[0]["levels"]), default=[])
    return {record["seed"]: record for record in nearest}


def _arm(records: list[Record], reference: dict[int, Record], decoder: dict[str, Any]) -> dict[str, Any]:
    pairs = [(record, reference[record["seed"]]) for record in records if record["seed"] in reference]
    last = [list(record["stages"].values())[-1] for record in records]
    return {
        "method": records[0]["method"],
        "levels": records[0]["levels"],
        "seeds": [record["seed"] for record in records],
        "losses": {
            stage: interval([_number(record["stages"][stage]["held_out"]["loss"][-1]) for record in records])
            for stage in records[0]["stages"]
        },
        "difference": interval([final_loss(own) - final_loss(other) for own, other in pairs]) if pairs else None,
        "stability": {
            stage: {
                name: interval([measure(record["stages"][stage]) for record in records])
                for name, measure in STABILITY.items()
            }
            for stage in records[0]["stages"]
        },
        "text": _text(records, decoder),
        "attention": _attention(records),
        "visual_norm": interval([_final_norm(stage, "visual", 0) for stage in last]),
        "visual_to_stream": interval(
            [_final_norm(stage, "visual", 0) / _final_norm(stage, "text", 1) for stage in last]
        ),
    }


def _contrast(weights: dict[str, int], by_arm: dict[str, list[Record]]) -> dict[str, Any] | None:
    """Weighted sum of held-out losses over the seeds that all its arms have; None while there is no such seed."""
    losses = [
        {record["seed"]: weight * final_loss(record) for record in by_arm.get(label, [])}
        for label, weight in weights.items()
    ]
    seeds = set.intersection(*map(set, losses))
    return interval([sum(each[seed] for each in losses) for seed in sorted(seeds)]) if seeds else None


def _text(records: list[Record], decoder: dict[str, Any]) -> dict[str, Any]:
    """Text benchmark -> score, and score minus that of the decoder before training."""
    found = {}
    for key, before in decoder.items():
        scores = [record["scores"][key]["score"] for record in records if record["scores"]]
        if scores:
            minus = interval([score - before["score"] for score in scores])
            found[key] = {"score": interval(scores), "minus_decoder": minus}
    return found


def _attention(records: list[Record]) -> dict[str, Any]:
    """Number -> its mean over layers and images."""
    measured = [record["attention"] for record in records if record["attention"]]
    names = [name for name in ATTENTION_NUMBERS if measured and name in measured[0]]
    return {name: interval([float(np.mean(each[name])) for each in measured]) for name in names}


def _final_norm(stage: dict[str, Any], series: str, layer: int) -> float:
    """Mean norm of what enters a layer at the end of a stage."""
    return _number(stage["profile"][-1][series]["norm"][layer])


def _number(value: float | None) -> float:
    """A recorded number; infinite if it was not finite."""
    return math.inf if value is None else value


def _tail(stage: dict[str, Any]) -> float:
    """99th percentile of the gradient norm over its median."""
    norms = [norm for norm in stage["gradients"]["grad_norm"] if norm is not None]
    return float(np.quantile(norms, 0.99) / np.median(norms)) if norms else math.inf


def _clipped(stage: dict[str, Any]) -> float:
    """Share of logged steps whose gradient was clipped."""
    factors = stage["gradients"]["clip_factor"]
    return sum(factor is None or factor < 1 for factor in factors) / len(factors)


def _spikes(stage: dict[str, Any]) -> float:
    """Number of logged losses far above those before them."""
    losses = [_number(loss) for loss in stage["loss"]["loss"]]
    return sum(losses[i] > SPIKE * median(losses[i - BEFORE : i]) for i in range(BEFORE, len(losses)))


STABILITY = {
    "gradient p99 / median": _tail,
    "clipped": _clipped,
    "spikes": _spikes,
    "skipped steps": lambda stage: stage["skipped_steps"],
}


def _scores(study: Study, records: Records, by_arm: dict[str, list[Record]]) -> list[dict[str, Any]]:
    """Rows as in scores.json; arms take the place of methods."""
    models, results = [], {}
    for label, own in by_arm.items():
        for record in own:
            if record["scores"]:
                name = f"{label}-seed{record['seed']}"
                models.append(Model(name, study.backbone, label, record["seed"]))
                results[name] = {
                    key: {"status": "ok", **answers, "items": asdict(records.items(record, key))}
                    for key, answers in record["scores"].items()
                }
    if not models:
        return []
    return [row for row in score_rows(models, results, study.reference) if row["source"] == "measured"]


def _losses_table(study: Study, found: dict[str, Any]) -> Table:
    stages = list(dict.fromkeys(stage for arm in found["arms"].values() for stage in arm["losses"]))
    heads = ["arm", "seeds", *(f"held-out loss, {stage}" for stage in stages), f"minus {study.reference}"]
    heads += ["spread over seeds", "visual norm", "visual / text entering layer 1"]
    rows = []
    for label, arm in found["arms"].items():
        losses = [shown(arm["losses"].get(stage)) for stage in stages]
        spread = number(list(arm["losses"].values())[-1]["sd"], 3)
        tail = [spread, shown(arm["visual_norm"], 2), shown(arm["visual_to_stream"], 2)]
        rows.append([label, str(len(arm["seeds"])), *losses, shown(arm["difference"]), *tail])
    return Table("Held-out loss", heads, rows)


def _law_table(study: Study, found: dict[str, Any]) -> Table:
    errors = found["law"]["errors"] if "law" in found else {}
    rows = [[name, number(each["left_out"], 3), number(each["rank"], 2)] for name, each in errors.items()]
    heads = ["predictor", "mean absolute error on left-out decoders, nats", "rank correlation with the effect"]
    return Table("What predicts the effect of a norm", heads, rows)


def _stability_table(study: Study, found: dict[str, Any]) -> Table:
    rows = [
        [label, stage, *(shown(measured[name], 2) for name in STABILITY)]
        for label, arm in found["arms"].items()
        for stage, measured in arm["stability"].items()
    ]
    return Table("Stability", ["arm", "stage", *STABILITY], rows)


def _contrasts_table(study: Study, found: dict[str, Any]) -> Table:
    rows = [[name, str(each["n"] if each else 0), shown(each)] for name, each in found["contrasts"].items()]
    heads = ["contrast", "seeds", "difference of held-out losses"]
    return Table("Contrasts", heads, rows)


def _scores_table(study: Study, found: dict[str, Any]) -> Table:
    several = {row["method"] for row in found["scores"] if row.get("seeds")}
    scored = [row for row in found["scores"] if row.get("seeds") or row["method"] not in several]
    keys = [*(benchmark.key for benchmark in BENCHMARKS), "avg"]
    cells = {(row["method"], row["benchmark"]): row for row in scored}
    titles = [BY_KEY[key].title if key in BY_KEY else "mean" for key in keys]
    rows = []
    for label in dict.fromkeys(row["method"] for row in scored):
        own = [cells[label, key] for key in keys]
        rows.append([label, *(shown({"mean": row["score"], "ci95": row["ci95"]}, 1) for row in own)])
        if any(row["delta"] is not None for row in own):
            minus = f"  minus {study.reference}"
            rows.append([minus, *(shown({"mean": row["delta"], "ci95": row["delta_ci95"]}, 1) for row in own)])
    return Table("Scores", ["arm", *titles], rows)


def _text_table(study: Study, found: dict[str, Any]) -> Table:
    rows = [
        [label, *(shown(arm["text"][key][name], 1) for key in arm["text"] for name in ("score", "minus_decoder"))]
        for label, arm in found["arms"].items()
        if arm["text"]
    ]
    keys = list(next((arm["text"] for arm in found["arms"].values() if arm["text"]), {}))
    heads = [head for key in keys for head in (BY_KEY[key].title, "minus the decoder before training")]
    return Table("Text", ["arm", *heads], rows)


def _attention_table(study: Study, found: dict[str, Any]) -> Table:
    rows = [
        [label, *(shown(arm["attention"].get(name)) for name in ATTENTION_NUMBERS)]
        for label, arm in found["arms"].items()
        if arm["attention"]
    ]
    heads = [name.replace("_", " ") for name in ATTENTION_NUMBERS]
    return Table("Attention to the image", ["arm", *heads], rows)


TABLES = (
    _law_table,
    _losses_table,
    _contrasts_table,
    _scores_table,
    _text_table,
    _attention_table,
    _stability_table,
)
