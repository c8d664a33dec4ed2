"""Plans an evaluation: its models, its jobs, and the results that exist already."""

import argparse
import hashlib
import re
from pathlib import Path
from typing import Any

from eval.data import mirror
from eval.data.benchmarks import BENCHMARKS, BY_KEY, HARNESSES
from eval.data.check import problem
from eval.data.fetch import REVISIONS
from eval.run import record as run_record
from eval.run.files import read_json
from eval.run.named_models import named_models
from eval.scoring import scores
from eval.suite.job import Job, Task
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


def read_models(
    arguments: list[str], backbone: str | None, seed: int | None
) -> dict[str, tuple[scores.EvaluatedModel, Path, bool]]:
    """NAME -> (model, checkpoint folder, whether it is multimodal).

    Raises:
        UserError: an argument is not NAME=PATH, a name is given twice, or a folder is not a checkpoint.
    """
    models = {}
    for name, path in named_models(arguments).items():
        folder = Path(path).resolve()
        config = read_json(folder / "config.json")
        if config is None or not any(folder.glob("*.safetensors")):
            raise UserError(f"--models {name}: no checkpoint (config.json and *.safetensors) in {path}")
        text = config.get("text_config", config)
        source = text.get("_name_or_path") or config.get("_name_or_path") or text["model_type"]
        seeded = re.fullmatch(r"(.+)-seed(\d+)", name)
        method, own_seed = (seeded[1], int(seeded[2])) if seeded else (name, seed)
        models[name] = (
            scores.EvaluatedModel(name, backbone or Path(source).name, method, own_seed),
            folder,
            "vision_config" in config,
        )
    return models


def plan(args: argparse.Namespace, output: Path, answers: Path, blank_images: bool = False) -> tuple[dict, list[Job]]:
    """Plan the jobs and find every mistake of the user before any work starts.

    Returns:
        The models, as `read_models` returns them, and one job per (checkpoint, harness), the long multimodal ones
        first.

    Raises:
        UserError: a model, the data root, a benchmark's data or `--limit` cannot be used.
    """
    models = read_models(args.models, args.backbone, args.seed)
    root = args.data.resolve()
    if not root.is_dir():
        raise UserError(f"--data {args.data}: no such folder")
    if args.limit is not None and args.limit < 1:
        raise UserError(f"--limit {args.limit}: at least 1 row is needed")
    wanted = [benchmark for benchmark in BY_KEY.values() if benchmark.key in args.tasks]
    if not any(multimodal for _, _, multimodal in models.values()):
        wanted = [benchmark for benchmark in wanted if benchmark.harness == "lm-eval"]
    fetched = (root / REVISIONS).exists()
    for benchmark in wanted:
        if (wrong := problem(root, benchmark, hub_rows=fetched)) is not None:
            raise UserError(f"benchmark {benchmark.key}: {wrong}")
    tasks = {b.key: Task(b.key, mirror.count_rows(root, b, args.limit), mirror.fingerprint(root, b)) for b in wanted}
    # The datasets cache identifies a folder by its name, not by its content, so each content gets its own cache.
    content = hashlib.sha256("".join(task.data for task in tasks.values()).encode()).hexdigest()[:16]
    jobs = [
        Job(
            name=name,
            multimodal=multimodal,
            checkpoint=str(folder),
            weights=hash_checkpoint(folder),
            harness=harness,
            tasks=[tasks[benchmark.key] for benchmark in wanted if benchmark.harness == harness],
            root=str(root),
            output=str(output.resolve()),
            answers=str(answers.resolve()),
            cache=str(args.run.resolve() / "cache" / content),
            batch_size=args.batch_size,
            max_new_tokens=args.max_new_tokens,
            dtype=args.dtype,
            device=args.device,
            blank_images=blank_images,
            trust_remote_code=args.trust_remote_code,
            shared_prefix=not args.no_shared_prefix,
            limit=args.limit,
            versions=run_record.versions(run_record.HARNESS_PACKAGES),
        )
        for harness in HARNESSES
        for name, (_, folder, multimodal) in models.items()
        if multimodal or harness == "lm-eval"
    ]
    return models, [job for job in jobs if job.tasks]


def collect(models: dict, jobs: list[Job]) -> dict[str, scores.Results]:
    """For every (checkpoint, benchmark): a result, a failure, or the reason why it was not run."""
    results: dict[str, scores.Results] = {}
    for name, (_, _, multimodal) in models.items():
        reason = "not asked for" if multimodal else "a language model sees no images"
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
            if result["inputs"] == job.inputs(task):
                results[job.name][benchmark.key] = result
    return results


def describe_run(args: argparse.Namespace, models: dict, jobs: list[Job]) -> dict[str, Any]:
    names = (
        "batch_size",
        "max_new_tokens",
        "dtype",
        "device",
        "trust_remote_code",
        "no_shared_prefix",
        "tasks",
        "limit",
    )
    settings = {name: getattr(args, name) for name in names}
    weights = {job.name: job.weights for job in jobs}
    described = {
        name: {
            "method": model.method,
            "seed": model.seed,
            "backbone": model.backbone,
            "path": str(path),
            "sha256": weights.get(name),
        }
        for name, (model, path, _) in models.items()
    }
    tasks = {task.key: {"rows": task.rows, "sha256": task.data} for job in jobs for task in job.tasks}
    return run_record.record(settings | {"decoding": "greedy"}, described, {"root": str(args.data), "tasks": tasks})
