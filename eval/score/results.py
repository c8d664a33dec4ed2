"""The results of all jobs as `scores.json`, and `run.json`, which lets a run be repeated and compared with others."""

import functools
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.options import Options
from eval.plan.job import Job, Task
from eval.plan.models import Models
from eval.score.scores import Results, pairing, score_rows
from modeling_aligned_llava.harness.deviations import deviations, stock
from modeling_aligned_llava.loading.chat_templates import PROMPT_DATE
from modeling_aligned_llava.loading.checkpoint import read_config
from modeling_aligned_llava.loading.device import resolve_device, resolve_dtype
from modeling_aligned_llava.loading.files import read_json, write_json
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint, versions


PACKAGES = ("modeling-aligned-llava", "torch", "transformers", "lmms-eval", "lm-eval", "datasets", "trl", "accelerate")
UNRECORDED = ("run", "data", "jobs", "tasks")  # options that change no answer, or are recorded as what they led to


def write_results(options: Options, models: Models, jobs: list[Job], baseline: str) -> None:
    """Write `run.json` and `scores.json`. Says on standard error what is not compared."""
    results = collect(models, jobs)
    record = describe_run(options, models, jobs, results)
    for sentence in pairing(list(models.values()), baseline):
        print(sentence, file=sys.stderr)  # noqa: T201
    rows = score_rows(list(models.values()), results, baseline, options.limit)
    write_json(options.folder / "run.json", record)
    write_json(options.folder / "scores.json", rows)


def collect(models: Models, jobs: list[Job]) -> dict[str, Results]:
    """For every (checkpoint, benchmark): a result, a failure, or the reason why it was not run."""
    results: dict[str, Results] = {}
    for name, model in models.items():
        reason = "not asked for" if model.multimodal else "a language model sees no images"
        results[name] = {b.key: {"status": "not run", "reason": reason} for b in BENCHMARKS}
    for job in jobs:
        planned = {task.key: task for task in job.tasks}
        for benchmark in BY_KEY.values():
            result = read_json(job.result(benchmark.key))
            if result is None or benchmark.harness != job.harness:
                continue
            # The data of tasks left out with --tasks is not checked; everything else must be the same.
            task = planned.get(benchmark.key) or Task(
                benchmark.key, result["inputs"]["rows"], result["inputs"]["data"]
            )
            if result["inputs"] != job.inputs(task):
                changed = ", ".join(job.changes(task, result["inputs"]))
                result = {"status": "not run", "reason": f"its result is outdated ({changed}); evaluate it again"}
            results[job.name][benchmark.key] = result
    return results


def describe_run(options: Options, models: Models, jobs: list[Job], results: dict[str, Results]) -> dict[str, Any]:
    """The content of run.json, without time stamps so that a repeated run does not change the file.

    Tasks are those asked for and those with a result from before; versions, code and hardware are those that made the
    results.
    """
    settings = {name: value for name, value in vars(options).items() if name not in UNRECORDED}
    settings |= {"device": resolve_device(options.device), "dtype": resolve_dtype(options.dtype, options.device)}
    weights = {job.name: job.weights for job in jobs} or {
        name: hash_checkpoint(model.folder) for name, model in models.items()
    }
    described: dict[str, dict[str, Any]] = {
        name: {
            "method": model.method,
            "seed": model.seed,
            "backbone": model.backbone,
            "path": str(model.folder),
            "sha256": weights.get(name),
        }
        for name, model in models.items()
    }
    made = [(key, result) for of_model in results.values() for key, result in of_model.items() if "inputs" in result]
    tasks = {key: {"rows": result["inputs"]["rows"], "sha256": result["inputs"]["data"]} for key, result in made}
    tasks |= {task.key: {"rows": task.rows, "sha256": task.data} for job in jobs for task in job.tasks}
    asked = [BY_KEY[key].task for key in tasks if BY_KEY[key].harness == "lmms-eval"]
    for name, model in models.items():
        if model.multimodal and asked:
            family = read_config(model.folder)["model_type"]
            described[name]["deviations"] = deviations(family, asked)
            described[name]["answer_tokens"] = {
                key: stock(family).answer_tokens(result["answer_tokens"], options.max_new_tokens)
                for key, result in results[name].items()
                if result["status"] == "ok" and BY_KEY[key].harness == "lmms-eval"
            }
    settings |= {"tasks": [key for key in BY_KEY if key in tasks]}
    settings |= {"decoding": "greedy", "prompt_date": str(PROMPT_DATE)}
    makers = [result["made_by"] for _, result in made if result["status"] == "ok"] or [made_by()]
    data = {"root": str(options.data), "tasks": tasks}
    return {"settings": settings, "models": described, "data": data} | _combined(makers)


def _combined(values: list[Any]) -> Any:
    """What several records agree on, entry by entry; where they differ, all of it."""
    if all(isinstance(value, dict) for value in values):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: _combined([value.get(name) for value in values]) for name in names}
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, list) for value in values):
        return list(dict.fromkeys(entry for value in values for entry in value))
    return " and ".join(dict.fromkeys(map(str, values)))


@functools.cache
def made_by() -> dict[str, Any]:
    """What runs here and now: package versions, commit and hardware."""
    code = _output(["git", "describe", "--always", "--dirty", "--abbrev=40"])
    gpus = _output(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"])
    processors = Path("/proc/cpuinfo")
    lines = processors.read_text().splitlines() if processors.is_file() else []
    cpu = next((line.split(":", 1)[1].strip() for line in lines if "model name" in line), platform.processor())
    return {
        "versions": {"python": platform.python_version()} | versions(PACKAGES),
        "code": code.strip() or None,
        "hardware": {"cpu": cpu, "cores": os.cpu_count(), "gpus": gpus.splitlines(), "system": platform.system()},
    }


def _output(command: list[str]) -> str:
    """What a program says of this machine; "" if there is none, or it fails."""
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=Path(__file__).parent)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return ended.stdout if ended.returncode == 0 else ""
