"""Measures what the report shows of the checkpoints themselves: the norm profile, and attention to example pictures.

Both are the diagnostics' own (paper Figs. 2-4, Appendix G). Results are kept under RUN/diagnostics/report with all
they depend on, so that a rerun measures nothing. An arm that cannot be measured has a reason, and costs no other.
"""

import sys
from collections import defaultdict
from typing import Any

import torch
from rich.progress import track

from eval.data.image_sample import SAMPLE, Picture, in_benchmarks
from eval.diagnostics.hooks.loading import inputs_of, load, special_ids
from eval.diagnostics.measure.attention import AttentionReader, box_shares
from eval.diagnostics.measure.profile import profile_loaded
from eval.diagnostics.statistics.bootstrap import mean_interval
from eval.report.finished_run import FinishedRun, without_paths
from eval.run.files import read_json, write_json
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


PROFILED = 48  # pictures of the profile
ATTENDED = 24  # of them, those with a box first, whose attention is measured
SHOWN = 6  # of those, as many of each benchmark as can be, whose attention is drawn
SCHEMA = 1


def measure(run: FinishedRun) -> dict[str, dict[str, Any]]:
    """Arm name -> {"profile": ..., "attention": ...}, or {"error": reason}."""
    found: dict[str, dict[str, Any]] = {}
    for arm in run.arms:
        try:
            found[arm.name] = _kept_or_measured(run, arm.name)
        except Exception as error:  # whatever a foreign checkpoint raises: the report says it
            words = " ".join(str(error).split())
            reason = without_paths(words if isinstance(error, UserError) else f"{type(error).__name__}: {words}")
            print(f"{arm.name}: no profile in the report: {reason}", file=sys.stderr)  # noqa: T201
            found[arm.name] = {"error": reason}
    return found


def pictures(run: FinishedRun) -> list[Picture]:
    """The pictures of the profile, drawn with the diagnostics' seed from the benchmarks that were evaluated.

    Raises:
        UserError: there are none.
    """
    root = run.data()
    if root is None:
        raise UserError("the data root is gone")
    keys = tuple(key for key in SAMPLE if key in run.record["data"]["tasks"])
    if not keys:
        raise UserError("none of MMBench, POPE and MM-Star was evaluated: there is no picture to look at")
    return in_benchmarks(root, PROFILED, keys=keys)


def _kept_or_measured(run: FinishedRun, name: str) -> dict[str, Any]:
    weights = run.weights(name)
    if weights is None:
        raise UserError("run.json does not tell which weights were evaluated")
    data = {key: task["sha256"] for key, task in run.record["data"]["tasks"].items() if key in SAMPLE}
    inputs = {"schema": SCHEMA, "weights": weights, "data": data, "pictures": [PROFILED, ATTENDED, SHOWN]}
    path = run.folder / "diagnostics" / "report" / f"{name}.json"
    kept = read_json(path)
    if kept is not None and kept["inputs"] == inputs:
        return kept
    checkpoint = run.checkpoint(name)
    if checkpoint is None:
        raise UserError("its checkpoint is gone")
    if hash_checkpoint(checkpoint) != weights:
        raise UserError("its checkpoint is no longer the one that was evaluated")
    sample = pictures(run)
    model, processor = load(str(checkpoint), run.record["settings"]["trust_remote_code"])
    measured = {
        "inputs": inputs,
        "profile": profile_loaded(name, model, processor, sample),
        "attention": attention(model, processor, sample),
    }
    write_json(path, measured, indent=None)
    return read_json(path)


@torch.inference_mode()
def attention(model: Any, processor: Any, sample: list[Picture]) -> dict[str, Any]:
    """Attention of the question's tokens to the image, by picture and layer.

    Returns:
        `pictures`: those whose maps are kept, each with `id`, `maps` (layers, rows, columns; the sum of a map is 1)
        and `inside`, by layer the share within the boxes (None without a box). `numbers`: by name, the mean over
        layers and pictures of `mass` (share of attention that falls on the image), `inside`, and `area`, what uniform
        attention would have inside, each with its 95 % interval over pictures.
    """
    parts = model_parts(model)
    attended = sorted(sample, key=lambda picture: not picture.boxes)[:ATTENDED]
    shown = {picture.id for picture in of_each_benchmark(attended)}
    values: dict[str, list[float]] = defaultdict(list)
    kept = []
    reader = AttentionReader()
    with reader.reading(model, parts, special_ids(processor)):
        for picture in track(attended, description="attention"):
            inputs, size = inputs_of(processor, picture, model.device), picture.open().size
            reader.begin(inputs, picture.boxes, size)
            model(**inputs, use_cache=False)
            values["mass"].append(_mean([numbers["mass"] for numbers in reader.numbers.values()]))
            maps = list(reader.maps.values())
            inside = None
            if maps and picture.boxes:
                covered = box_shares(picture.boxes, size, (len(maps[0]), len(maps[0][0])))
                inside = [(share * covered).sum().item() for share in maps]
                values["inside"].append(_mean(inside))
                values["area"].append(covered.mean().item())
            if picture.id in shown and maps:
                rounded = [[[round(cell, 6) for cell in row] for row in share.tolist()] for share in maps]
                kept.append({"id": picture.id, "maps": rounded, "inside": inside})
    numbers = {name: _with_interval(torch.tensor(column)) for name, column in values.items()}
    return {"pictures": kept, "numbers": numbers}


def of_each_benchmark(sample: list[Picture]) -> list[Picture]:
    """The first pictures of each benchmark, as many of one as of another, in the order of the benchmarks."""
    groups: dict[str, list[Picture]] = defaultdict(list)
    for picture in sample:
        groups[picture.id.split("/")[0]].append(picture)
    each = -(-SHOWN // len(groups))
    return [picture for key in SAMPLE for picture in groups[key][:each]][:SHOWN]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _with_interval(values: torch.Tensor) -> dict[str, Any]:
    return {"mean": values.mean().item(), "ci95": mean_interval(values), "pictures": len(values)}
