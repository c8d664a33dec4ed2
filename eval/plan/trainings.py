"""The trainings of a run: which command makes each stage of each model, from backbones or from a model of yours."""

import argparse
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.options import SEED, read_recipe
from eval.plan.models import Model, Models, read_models
from modeling_aligned_llava.loading.checkpoint import check_source, local_folder


START = "start"  # the model before it is fine-tuned
FINETUNE = "finetuned"  # the only stage of a model that was trained before
STAGES = {"stage1": (0.0, 0.3), "stage2": (0.3, 0.7)}  # its start and its length, as shares of the time of both
SPANS = STAGES | {FINETUNE: (0.0, 1.0)}


def checkpoint_name(method: str, seed: int) -> str:
    """The folder under `checkpoints` that train/run.sh trains in."""
    return method if seed == SEED else f"{method}-seed{seed}"


@dataclass(frozen=True)
class Training:
    """One stage of training the checkpoint `name`. Run again, `command` resumes, or finds the stage finished."""

    name: str
    stage: str
    command: tuple[str, ...]
    log: Path

    @property
    def step(self) -> str:
        """The name of this step in a run."""
        return f"{self.name} {self.stage}"


def models_to_train(args: argparse.Namespace) -> tuple[Models, list[Training]]:
    """The models of a training run, trained already or not, and the trainings that make them.

    The backbone's language model is one of them, if it is a folder: what training does to the text benchmarks.
    """
    models: Models = {}
    trainings = []
    for seed in args.seeds:
        for method in args.methods:
            name = checkpoint_name(method, seed)
            folder = args.run / "checkpoints" / name / "stage2"
            models[name] = Model(name, args.backbone, method, seed, folder.resolve())
            options = ["--backbone", args.backbone, "--method", method, "--seed", str(seed)]
            options += ["--output-root", str(args.run)]
            options += ["--data", str(args.training_data)] if args.training_data else []
            log = args.run / "logs" / f"train.{method}.{seed}.log"
            for stage in STAGES:
                trainings.append(Training(name, stage, ("bash", "train/run.sh", *options, "--stage", stage), log))
    decoder = Path(read_recipe(args.backbone, "stage1")["language_model"])
    if (decoder / "config.json").is_file():
        models |= read_models([f"language-model={decoder}"], args.backbone, SEED)
    return models, trainings


def models_to_finetune(args: argparse.Namespace) -> tuple[Models, list[Training]]:
    """The start, the models to make of it, and the trainings that make them.

    Raises:
        UserError: there is no such model.
    """
    check_source(args.finetune, "--finetune")
    folder = Path(local_folder(args.finetune)).resolve()
    backbone = Path(args.finetune.partition("@")[0]).name
    models: Models = {START: Model(START, backbone, START, args.seeds[0], folder)}
    trainings = []
    for seed in args.seeds:
        for method in args.methods:
            name = checkpoint_name(method, seed)
            out = args.run / "checkpoints" / name / FINETUNE
            models[name] = Model(name, backbone, method, seed, out.resolve())
            log = args.run / "logs" / f"train.{method}.{seed}.log"
            launch = shlex.split(os.environ.get("LAUNCH", "")) or [sys.executable]  # of `accelerate launch`
            settings = finetune_settings(args, folder, method, seed, out)
            trainings.append(Training(name, FINETUNE, (*launch, "-m", "train.sft", *settings), log))
    return models, trainings


def finetune_settings(args: argparse.Namespace, folder: Path, method: str, seed: int, out: Path) -> list[str]:
    """The command line of train.sft for one of them."""
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
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]
