"""`run_all.sh --finetune MODEL`: the model as it is, and fine-tuned with each method on the same rows."""

import argparse
import json
import math
import os
import shlex
import subprocess
import sys
from collections import deque
from pathlib import Path
from typing import Any

from eval.engine.child import logged
from eval.scoring.scores import EvaluatedModel
from eval.suite.plan import Models
from eval.suite.training import FINETUNE, START, Training, checkpoint_name
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.checkpoint import check_source, local_folder
from modeling_aligned_llava.loading.files import read_json


PROFILED = 48  # images that tell whether its visual tokens are inert


def models_to_finetune(args: argparse.Namespace) -> tuple[Models, list[Training]]:
    """The start, the models to make of it, and the steps that make them.

    Raises:
        UserError: there is no such model.
    """
    check_source(args.finetune, "--finetune")
    folder = Path(local_folder(args.finetune)).resolve()
    backbone = Path(args.finetune.partition("@")[0]).name
    models: Models = {START: (EvaluatedModel(START, backbone, START, args.seeds[0]), folder, True)}
    trainings = []
    for seed in args.seeds:
        for method in args.methods:
            name = checkpoint_name(method, seed)
            out = args.run / "checkpoints" / name / FINETUNE
            models[name] = (EvaluatedModel(name, backbone, method, seed), out.resolve(), True)
            log = args.run / "logs" / f"train.{method}.{seed}.log"
            trainings.append(Training(name, FINETUNE, command(args, folder, method, seed, out), log))
    return models, trainings


def command(args: argparse.Namespace, folder: Path, method: str, seed: int, out: Path) -> tuple[str, ...]:
    """What trains one of them, as `accelerate launch` in $LAUNCH says."""
    launch = shlex.split(os.environ.get("LAUNCH", "")) or [sys.executable]
    settings: dict[str, Any] = {
        "config": args.recipe,
        "model_name_or_path": folder,
        "method": method,
        "seed": seed,
        "data_path": args.training_data,
        "image_folder": args.images,
        "output_dir": out,
        "data_cache": args.run / "cache" / "rows",
        "eval_rows": args.held_out,
        "eval_strategy": "epoch",
    }
    words = (word for name, value in settings.items() for word in (f"--{name}", str(value)))
    return (*launch, "-m", "train.sft", *words)


def preflight(args: argparse.Namespace, folder: Path) -> bool:
    """Print what one of the trainings takes, measured on two steps; whether it can succeed."""
    words = command(args, folder, args.methods[-1], args.seeds[0], args.run / "preflight")
    settings = words[words.index("train.sft") + 1 :]
    return not subprocess.run([sys.executable, "-m", "train.preflight", *settings, "--measure"]).returncode  # noqa: S603


def profile_of_start(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """The profile of the model as it is, measured once.

    Raises:
        UserError: it cannot be measured.
    """
    path = args.run / "diagnostics" / f"{START}.json"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        images = ["--images", str(args.images), "--limit", str(PROFILED)]
        words = [sys.executable, "-m", "eval.diagnostics", "profile", str(folder), *images, "--json", str(unfinished)]
        deque(logged(words, args.run / "logs" / "profile.log"), maxlen=0)
        unfinished.replace(path)
    found = read_json(path)
    if found is None:
        raise UserError(f"{path} is damaged: remove it")
    return found


def held_out_losses(models: Models) -> dict[str, dict[int, float]]:
    """Method -> seed -> mean loss on the rows kept from training, after the last step.

    Raises:
        UserError: a loss is not finite.
    """
    found: dict[str, dict[int, float]] = {}
    for model, folder, _ in models.values():
        log = folder / "log.jsonl"
        text = log.read_text(encoding="utf-8") if log.is_file() else ""
        measured = [line["eval_loss"] for line in map(json.loads, text.splitlines()) if "eval_loss" in line]
        if measured and not math.isfinite(measured[-1]):
            raise UserError(f"{log}: the held-out loss is {measured[-1]}: the training diverged; lower learning_rates")
        if measured and model.seed is not None:
            found.setdefault(model.method, {})[model.seed] = measured[-1]
    return found
