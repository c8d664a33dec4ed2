"""Measures the checkpoints for the report: the norm profile, and attention to example images.

Profile and attention come from the diagnostics (paper Figs. 2-4, Appendix G). Results are stored in
RUN/diagnostics/report with all they depend on, so a rerun measures nothing. A failed model is reported; the others are
still measured.
"""

import sys
from collections import defaultdict
from statistics import fmean
from typing import Any

import torch

from eval.data.benchmarks import BENCHMARKS
from eval.data.image_sample import SAMPLE, in_benchmarks
from eval.report.finished_run import FinishedRun, without_paths
from modeling_aligned_llava.diagnostics.attention import AttentionReader, attention_by_image
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion, in_folder
from modeling_aligned_llava.diagnostics.instruments.models import load
from modeling_aligned_llava.diagnostics.instruments.token_statistics import mean_interval
from modeling_aligned_llava.diagnostics.profile import profile_loaded
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.device import resolve_dtype
from modeling_aligned_llava.loading.files import read_json, write_json
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


PROFILED = 48  # images for the profile
ATTENDED = 24  # of these, images for attention, those with a box first
SCHEMA = 4
MULTIMODAL = [benchmark.key for benchmark in BENCHMARKS if benchmark.harness == "lmms-eval"]  # a bare decoder has none


def measure(run: FinishedRun) -> dict[str, dict[str, Any]]:
    """Model name -> {"profile": ..., "attention": ...}, or {"error": reason}."""
    measured: dict[str, dict[str, Any]] = {}
    for model in run.models:
        try:
            measured[model.name] = _kept_or_measured(run, model.name)
        except Exception as error:  # whatever a foreign checkpoint raises is shown in the report
            words = " ".join(str(error).split())
            reason = without_paths(words if isinstance(error, UserError) else f"{type(error).__name__}: {words}")
            if any(cell["status"] != "not run" for key, cell in run.cells[model.name].items() if key in MULTIMODAL):
                print(f"{model.name}: no profile in the report: {reason}", file=sys.stderr)  # noqa: T201
            measured[model.name] = {"error": reason}
    return measured


def image_sample(run: FinishedRun) -> list[ImageQuestion]:
    """The images for the profile, drawn with the diagnostics' seed from the benchmarks that were evaluated.

    Without any benchmark, the data root is a folder of images.

    Raises:
        UserError: there are none.
    """
    root = run.data
    if root is None:
        raise UserError("the data root is gone")
    tasks = run.record["data"]["tasks"]
    if not tasks:
        return in_folder(root, PROFILED)
    keys = tuple(key for key in SAMPLE if key in tasks)
    if not keys:
        raise UserError("none of MMBench, POPE and MM-Star was evaluated, so there are no images to measure on")
    return in_benchmarks(root, PROFILED, keys=keys)


def _kept_or_measured(run: FinishedRun, name: str) -> dict[str, Any]:
    weights = run.record.get("models", {}).get(name, {}).get("sha256")
    if weights is None:
        raise UserError("run.json does not record which weights were evaluated")
    data = {key: task["sha256"] for key, task in run.record["data"]["tasks"].items() if key in SAMPLE}
    inputs = {"schema": SCHEMA, "weights": weights, "data": data, "pictures": [PROFILED, ATTENDED]}
    inputs["dtype"] = resolve_dtype("auto", "auto")
    path = run.folder / "diagnostics" / "report" / f"{name}.json"
    kept = read_json(path)
    if kept is not None and kept["inputs"] == inputs:
        return kept
    checkpoint = run.checkpoints[name]
    if checkpoint is None:
        raise UserError("its checkpoint is gone")
    if hash_checkpoint(checkpoint) != weights:
        raise UserError("its checkpoint is no longer the one that was evaluated")
    sample = image_sample(run)
    model, processor = load(str(checkpoint), run.record["settings"]["trust_remote_code"])
    measured = {
        "inputs": inputs,
        "profile": profile_loaded(name, model, processor, sample),
        "attention": attention(model, processor, sample),
    }
    write_json(path, measured, indent=None)
    return read_json(path)


@torch.inference_mode()
def attention(model: Any, processor: Any, sample: list[ImageQuestion]) -> dict[str, Any]:
    """Attention of the question's tokens to the image, images with a box first.

    Returns:
        By name, the mean over layers and images of `mass` (share of attention that falls on the image), `inside` (of
        that, the share within the boxes), and `area`, the share that uniform attention would have inside, each with
        its 95 % interval over images.
    """
    attended = sorted(sample, key=lambda image: not image.boxes)[:ATTENDED]
    values: dict[str, list[float]] = defaultdict(list)
    for _, reader in attention_by_image(model, processor, attended, AttentionReader()):
        values["mass"].append(fmean(numbers["mass"] for numbers in reader.numbers.values()))
        if reader.covered is not None and reader.maps:
            values["inside"].append(fmean((share * reader.covered).sum().item() for share in reader.maps.values()))
            values["area"].append(reader.covered.mean().item())
    columns = {name: torch.tensor(column) for name, column in values.items()}
    return {
        name: {"mean": column.mean().item(), "ci95": mean_interval(column), "pictures": len(column)}
        for name, column in columns.items()
    }
