"""Tables of visual information: does the measure follow the probes, who keeps more, and does it explain results?

Of a study's cells with `measure: information`, and of kept checkpoints of other studies, which `research.information`
measured into checkpoints.json beside the records.
"""

from collections import defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from scipy.stats import spearmanr

from eval.data.benchmarks import BENCHMARKS
from modeling_aligned_llava.diagnostics.instruments.tables import number
from modeling_aligned_llava.loading.files import read_json
from research.information import CONTENTS
from research.study.records import Records
from research.study.table import Table, interval, shown


SHIPPED_LIFT = "1.7"  # of the decoder that studies without lifts train
OVERLAP, PROBES = "overlap", "probes"  # the probes: their mean
Row = dict[str, Any]  # of one checkpoint: lift, stage, method, seed, results; numbers by layer, which are columns
Group = tuple[str, str]  # lift and stage


def information_tables(records: Records, reference: str) -> list[Table]:
    """The tables; none without measurements."""
    groups: dict[Group, list[Row]] = defaultdict(list)
    for row in _rows(records):
        groups[row["lift"], row["stage"]].append(row)
    makers = (_levels_table, _kept_table, _followed_table, _explained_table)
    return [make(dict(sorted(groups.items())), reference) for make in makers] if groups else []


def _rows(records: Records) -> list[Row]:
    own = [
        _row(record, stage, layers)
        for record in records.read()
        for stage, layers in record.get("information", {}).items()
    ]
    return own + [
        _row(_record(records.folder.parent, study, cell), stage, layers)
        for name, layers in (read_json(records.folder / "checkpoints.json") or {}).items()
        for study, cell, stage in [name.split(".")]
    ]


def _record(folder: Path, study: str, cell: str) -> dict[str, Any]:
    known = Records(folder, study).read()
    return next(record for record in known if f"{record['arm']}-seed{record['seed']}" == cell)


def _row(record: dict[str, Any], stage: str, layers: list[dict[str, Any]]) -> Row:
    results = {"held-out loss": record["stages"][stage]["held_out"]["loss"][-1]}
    if record["scores"] and stage == list(record["stages"])[-1]:
        results["mean score"] = fmean(record["scores"][benchmark.key]["score"] for benchmark in BENCHMARKS)
    return {
        **{"lift": record["levels"].get("lift", SHIPPED_LIFT), "stage": stage},
        **{"method": record["method"], "seed": record["seed"], "results": results},
        OVERLAP: [layer["mean"] for layer in layers],
        PROBES: [fmean(layer[content] for content in CONTENTS) for layer in layers],
        "shuffled": [layer["shuffled"] for layer in layers],
        **{content: [layer[content] for layer in layers] for content in CONTENTS},
    }


def _change(row: Row, name: str) -> float:
    return row[name][-1] - row[name][0]


def _by_method(rows: list[Row]) -> dict[str, dict[int, Row]]:
    methods: dict[str, dict[int, Row]] = defaultdict(dict)
    for row in rows:
        methods[row["method"]][row["seed"]] = row
    return methods


def _levels_table(groups: dict[Group, list[Row]], _: str) -> Table:
    cells = [
        [*group, method, str(len(own))]
        + [
            shown(interval([row[name][layer] for row in own.values()]))
            for name in (OVERLAP, PROBES)
            for layer in (0, 1, -1)
        ]
        + [number(max(max(row["shuffled"]) for row in own.values()), 3)]
        for group, rows in groups.items()
        for method, own in _by_method(rows).items()
    ]
    heads = ["lift", "stage", "method", "seeds"]
    heads += [f"{name}, {layer} layer" for name in (OVERLAP, PROBES) for layer in ("first", "second", "last")]
    return Table("Visual information entering a layer", [*heads, "largest null"], cells)


def _kept_table(groups: dict[Group, list[Row]], reference: str) -> Table:
    cells = []
    for group, rows in groups.items():
        methods = _by_method(rows)
        for method, own in methods.items():
            seeds = [seed for seed in own if seed in methods[reference]]
            line = [*group, method]
            for name in (OVERLAP, PROBES):
                changes = {m: [_change(methods[m][seed], name) for seed in seeds] for m in (method, reference)}
                minus = [a - b for a, b in zip(changes[method], changes[reference], strict=True)]
                line += [shown(interval(changes[method])), "-" if method == reference else shown(interval(minus))]
            cells.append(line)
    heads = [head for name in (OVERLAP, PROBES) for head in (f"{name}, last minus first layer", f"minus {reference}")]
    return Table("What deep layers keep", ["lift", "stage", "method", *heads], cells)


def _followed_table(groups: dict[Group, list[Row]], _: str) -> Table:
    cells = []
    for group, rows in groups.items():
        for where, layers in (("all layers", range(len(rows[0][OVERLAP]))), ("last layer", [-1])):
            overlap = [row[OVERLAP][layer] for row in rows for layer in layers]
            line = [*group, where, str(len(overlap))]
            for name in (PROBES, *CONTENTS):
                line.append(_rank(overlap, [row[name][layer] for row in rows for layer in layers]))
            cells.append(line)
    heads = ["lift", "stage", "where", "points", "all three", *CONTENTS]
    return Table("Rank correlation of the overlap with probes", heads, cells)


def _explained_table(groups: dict[Group, list[Row]], _: str) -> Table:
    cells = []
    for group, rows in groups.items():
        for result in rows[0]["results"]:
            results = [row["results"][result] for row in rows]
            line = [*group, result, str(len(rows))]
            for name in (OVERLAP, PROBES):
                for values in ([row[name][-1] for row in rows], [_change(row, name) for row in rows]):
                    line += [_rank(values, results), _rank(_within(rows, values), _within(rows, results))]
            cells.append(line)
    heads = ["lift", "stage", "result", "points"]
    for name in (OVERLAP, PROBES):
        for what in ("last layer", "last minus first"):
            heads += [f"{name}, {what}", "within methods"]
    return Table("Rank correlation with results", heads, cells)


def _within(rows: list[Row], values: list[float]) -> list[float]:
    """Values minus the mean of their method."""
    means = {m: fmean(v for row, v in zip(rows, values, strict=True) if row["method"] == m) for m in _by_method(rows)}
    return [value - means[row["method"]] for row, value in zip(rows, values, strict=True)]


def _rank(one: list[float], other: list[float]) -> str:
    found = spearmanr(np.array(one), np.array(other))
    return f"{found.statistic:+.2f}"
