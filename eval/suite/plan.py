"""Plans an evaluation: its models, its jobs, and the results that exist already."""

import argparse
import hashlib
import re
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Any

from eval.data import mirror
from eval.data.benchmarks import BENCHMARKS, BY_KEY, HARNESSES
from eval.data.check import problem
from eval.data.fetch import REVISIONS
from eval.run import record as run_record
from eval.scoring import scores
from eval.suite.job import Job, Task
from eval.suite.options import TRANSFORMERS, Options, add_options, count
from eval.suite.servable import check_servable
from eval.suite.vllm_server import resolve
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.deviations import deviations, stock
from modeling_aligned_llava.harness.provenance import producer
from modeling_aligned_llava.loading.chat_templates import PROMPT_DATE
from modeling_aligned_llava.loading.checkpoint import read_config, sees_images
from modeling_aligned_llava.loading.device import resolve_device, resolve_dtype
from modeling_aligned_llava.loading.files import read_json, write_json
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(prog="python -m eval.suite", description=__doc__.split("\n\n")[0])
    p.add_argument("--run", required=True, type=Path, help="folder of the run, e.g. results/tinyworld")
    p.add_argument("--data", required=True, type=Path, help="data root with one folder a dataset, ROOT/org/name/")
    p.add_argument(
        "--models", required=True, nargs="+", metavar="NAME=PATH", help="checkpoints; NAME-seedN names a seed"
    )
    p.add_argument(
        "--baseline",
        metavar="NAME",
        help="the method that others of its backbone are compared with (default: the first)",
    )
    p.add_argument("--backbone", help="its name in the tables (default: from the checkpoint's configuration)")
    p.add_argument("--seed", type=int, help="seed of the models whose names do not tell")
    p.add_argument(
        "--max-new-tokens", type=count, help="upper limit on the length of answers (default: the tasks' own)"
    )
    add_options(p)
    return p


# NAME -> (model, checkpoint folder, whether it is multimodal)
Models = dict[str, tuple[scores.EvaluatedModel, Path, bool]]


def read_models(arguments: list[str], backbone: str | None, seed: int | None) -> Models:
    """The models of the command line, by name.

    Raises:
        UserError: an argument is not NAME=PATH, a name is given twice, or a folder is not a checkpoint that can be
            served.
    """
    models: Models = {}
    for argument in arguments:
        name, _, path = argument.partition("=")
        if not re.fullmatch(r"[\w.+-]+", name) or not path:
            raise UserError(f"--models {argument}: expected NAME=PATH, the name of letters, digits and . + - _")
        if name in models:
            raise UserError(f"--models: {name} is given twice")
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
            sees_images(folder),
        )
    return models


def plan(
    options: Options,
    models: Models,
    blank_images: bool = False,
    untrained: Collection[str] = (),
    output: Path | None = None,
) -> list[Job]:
    """Plan the jobs, and find every mistake of the user before any work starts.

    Args:
        models: what `read_models` returns.
        untrained: models without weights yet; their jobs lack the digest.
        output: where results are written, if not in the options' folder.

    Returns:
        One job for each (checkpoint, harness), the long multimodal ones first.

    Raises:
        UserError: a model, the data root or a benchmark's data cannot be used.
    """
    folder = output or options.folder
    root = options.data.resolve()
    if not root.is_dir():
        raise UserError(f"--data {options.data}: no such folder")
    wanted = [benchmark for benchmark in BY_KEY.values() if benchmark.key in options.tasks]
    if not any(multimodal for _, _, multimodal in models.values()):
        wanted = [benchmark for benchmark in wanted if benchmark.harness == "lm-eval"]
    fetched = (root / REVISIONS).exists()
    for benchmark in wanted:
        if (wrong := problem(root, benchmark, hub_rows=fetched)) is not None:
            raise UserError(f"benchmark {benchmark.key}: {wrong}")
    tasks = {
        b.key: Task(b.key, mirror.count_rows(root, b, options.limit), mirror.fingerprint(root, b)) for b in wanted
    }
    # The datasets cache identifies a folder by its name, not by its content, so each content gets its own cache.
    content = hashlib.sha256("".join(task.data for task in tasks.values()).encode()).hexdigest()[:16]
    trained = {name: checkpoint for name, (_, checkpoint, _) in models.items() if name not in untrained}
    for name, checkpoint in trained.items():
        _, _, multimodal = models[name]
        asked = [benchmark for benchmark in wanted if multimodal or benchmark.harness == "lm-eval"]
        check_servable(name, checkpoint, asked, options)
    weights = {name: hash_checkpoint(checkpoint) for name, checkpoint in trained.items()}
    engine = options.engine if options.engine == TRANSFORMERS else resolve(options.engine)
    device, dtype = resolve_device(options.device), resolve_dtype(options.dtype, options.device)
    produced_by = producer(device)
    return [
        Job(
            name=name,
            multimodal=multimodal,
            checkpoint=str(checkpoint),
            weights=weights.get(name, ""),
            harness=harness,
            tasks=[tasks[benchmark.key] for benchmark in wanted if benchmark.harness == harness],
            root=str(root),
            output=str(folder.resolve() / "harness"),
            answers=str(folder.resolve() / "answers"),
            cache=str(options.run.resolve() / "cache" / content),
            batch_size=options.batch_size,
            max_new_tokens=options.max_new_tokens,
            dtype=dtype,
            device=device,
            blank_images=blank_images,
            trust_remote_code=options.trust_remote_code,
            shared_prefix=not options.no_shared_prefix,
            engine=engine,
            limit=options.limit,
            producer=produced_by,
        )
        for harness in HARNESSES
        for name, (_, checkpoint, multimodal) in models.items()
        if multimodal or harness == "lm-eval"
    ]


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
            if result["inputs"] != job.inputs(task):
                changed = ", ".join(job.changes(task, result["inputs"]))
                result = {"status": "not run", "reason": f"its result is outdated ({changed}); evaluate it again"}
            results[job.name][benchmark.key] = result
    return results


def describe_run(options: Options, models: dict, jobs: list[Job]) -> dict[str, Any]:
    """The content of run.json. Tasks are those asked for and those with a result from before; versions, code and
    hardware are those that made the results.
    """
    names = (
        "batch_size",
        "max_new_tokens",
        "dtype",
        "device",
        "trust_remote_code",
        "no_shared_prefix",
        "engine",
        "limit",
    )
    resolved = {"device": resolve_device(options.device), "dtype": resolve_dtype(options.dtype, options.device)}
    settings = {name: getattr(options, name) for name in names} | resolved
    weights = {job.name: job.weights for job in jobs} or {
        name: hash_checkpoint(path) for name, (_, path, _) in models.items()
    }
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
    results = collect(models, jobs)
    found = [(key, each) for own in results.values() for key, each in own.items() if "inputs" in each]
    tasks = {key: {"rows": result["inputs"]["rows"], "sha256": result["inputs"]["data"]} for key, result in found} | {
        task.key: {"rows": task.rows, "sha256": task.data} for job in jobs for task in job.tasks
    }
    settings["tasks"] = [key for key in BY_KEY if key in tasks]
    asked = [BY_KEY[key].task for key in tasks if BY_KEY[key].harness == "lmms-eval"]
    for name, (_, path, multimodal) in models.items():
        if multimodal and asked:
            family = read_config(path)["model_type"]
            described[name]["deviations"] = deviations(family, asked)
            described[name]["answer_tokens"] = {
                key: stock(family).answer_tokens(result["answer_tokens"], options.max_new_tokens)
                for key, result in results[name].items()
                if result["status"] == "ok" and BY_KEY[key].harness == "lmms-eval"
            }
    data = {"root": str(options.data), "tasks": tasks}
    makers = [result["made_by"] for _, result in found if result["status"] == "ok"]
    return run_record.record(
        settings | {"decoding": "greedy", "prompt_date": str(PROMPT_DATE)}, described, data, makers
    )


def baseline_of(models: Models, wanted: str | None) -> str:
    """The method that others are compared with: the one asked for, or the first.

    Raises:
        UserError: there is no such method among the models.
    """
    methods = [model.method for model, _, _ in models.values()]
    if wanted is not None and wanted not in methods:
        raise UserError(f"--baseline {wanted}: not among the models ({', '.join(methods)})")
    return wanted or methods[0]


def write_scores(options: Options, models: Models, jobs: list[Job], baseline: str) -> None:
    """`scores.json`, from the results that are there. Says on standard error what is not compared."""
    evaluated = [model for model, _, _ in models.values()]
    for sentence in scores.pairing(evaluated, baseline):
        print(sentence, file=sys.stderr)  # noqa: T201
    write_json(
        options.folder / "scores.json", scores.score_rows(evaluated, collect(models, jobs), baseline, options.limit)
    )
