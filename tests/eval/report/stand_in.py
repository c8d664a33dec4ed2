"""A finished run made of stand-ins: two benchmarks, a record, training logs, tiny checkpoints."""

import json
from pathlib import Path
from typing import Any

from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.score.items import Items
from eval.score.scores import Model, score_rows
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint
from tests import benchmark_stand_in as stand_in


QUESTIONS = 12
RIGHT = {"baseline": "111111111100", "norm": "111000111100", "lm": "110011001100"}  # by question, 1 for right
NOT_RUN = {"status": "not run", "reason": "not asked for"}


def write_data(root: Path) -> Path:
    """POPE of a data root, with the boxes of its questions."""
    folder = BY_KEY["pope"].folder
    stand_in.write_dataset(root / folder, {"default": {"test": stand_in.pope(QUESTIONS)}})
    (root / "boxes.json").write_text(json.dumps({folder: {str(i): [[2, 2, 16, 16]] for i in range(QUESTIONS)}}))
    return root


def write_run(
    folder: Path, checkpoint: Path | None, names: tuple[str, ...] = ("baseline", "norm"), **failed: str
) -> Path:
    """A run of models (keys of RIGHT), all with the weights of `checkpoint`.

    Args:
        failed: name -> the reason why its POPE failed.
    """
    write_data(folder / "data" / "mirrors")
    results, models = {}, {}
    for name in names:
        pope, mmlu = _result(name, "pope", ""), _result(name, "mmlu", "mmlu_anatomy")
        if name in failed:
            pope = {"status": "failed", "reason": failed[name]}
        elif name == "lm":
            pope = {"status": "not run", "reason": "a language model sees no images"}
        results[name] = {b.key: dict(NOT_RUN) for b in BENCHMARKS} | {"pope": pope, "mmlu": mmlu}
        stage = folder / "checkpoints" / name / "stage2"
        if checkpoint is not None:
            stage.mkdir(parents=True)
            for file in checkpoint.iterdir():
                (stage / file.name).symlink_to(file)
            write_logs(stage)
        models[name] = {"method": name, "seed": 42, "backbone": "toy", "path": str(folder / "elsewhere" / name)}
        models[name]["sha256"] = hash_checkpoint(checkpoint) if checkpoint else "0" * 64
    rows = score_rows([Model(name, "toy", name, 42) for name in names], results, "baseline")
    (folder / "scores.json").write_text(json.dumps(rows))
    (folder / "run.json").write_text(json.dumps(_record(models)))
    return folder


def _result(name: str, task: str, stratum: str) -> dict[str, Any]:
    items = Items()
    for number, right in enumerate(RIGHT[name]):
        items.add(f"{task}/{number}", right == "1", stratum)
    unparseable = 0.02 if task == "pope" else 0.0
    result = {"status": "ok", "reason": None, "score": items.score(False), "unparseable": unparseable}
    return result | {"items": vars(items)}


def _record(models: dict[str, Any]) -> dict[str, Any]:
    tasks = {"pope": {"rows": QUESTIONS, "sha256": "1" * 64}, "mmlu": {"rows": QUESTIONS, "sha256": "2" * 64}}
    return {
        "settings": {"trust_remote_code": False, "batch_size": 4, "tasks": ["pope", "mmlu"]},
        "models": models,
        "data": {"root": "/home/somebody/data", "tasks": tasks},
        "versions": {"python": "3.11", "torch": "2"},
        "code": None,
        "hardware": {"cpu": "a processor", "cores": 2, "gpus": [], "system": "Linux"},
    }


def write_logs(stage: Path) -> None:
    """Three logged steps."""
    steps = ((10, 4.0), (20, 2.0), (30, 1.0))
    series = {"tokens": 4, "norm": [1.0, 2.0, 3.0], "cosine": [0.5, 0.7]}

    logs = {
        "log": [{"step": step, "loss": loss} for step, loss in steps] + [{"step": 30, "train_runtime": 1.0}],
        "gradients": [{"step": step, "grad_norm": loss} for step, loss in steps],
        "probe": [{"step": step, "visual": series, "text": series} for step in (0, 30)],
    }
    for name, lines in logs.items():
        (stage / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
