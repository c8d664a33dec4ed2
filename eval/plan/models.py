"""The models of a run, given or to be trained, from backbones or from a model of yours; what training each takes."""

import argparse
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eval.options import SEED
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.checkpoint import check_source, local_folder, sees_images
from modeling_aligned_llava.loading.files import read_json


START = "start"  # the model before it is fine-tuned
ROWS = "cache/rows"  # in a run, prepared rows of fine-tuning
FINETUNE = "finetuned"  # the only stage of a model that was trained before
STAGES = {"stage1": (0.0, 0.3), "stage2": (0.3, 0.7)}  # its start and its length, as shares of the time of both
SPANS = STAGES | {FINETUNE: (0.0, 1.0)}


@dataclass(frozen=True)
class Model:
    """A checkpoint: `name` is that of the run's folders; backbone, method and seed are those of the tables.

    `multimodal` is false for a bare decoder.
    """

    name: str
    backbone: str
    method: str
    seed: int | None
    folder: Path = Path()
    multimodal: bool = True

    @property
    def is_trained(self) -> bool:
        """Whether its last training stage has finished."""
        return (self.folder / "training_complete.json").is_file()


Models = dict[str, Model]  # by name, in the order of the tables


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


def read_models(arguments: list[str], backbone: str | None, seed: int | None) -> Models:
    """The models of the command line.

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
        method, seed_of_name = (seeded[1], int(seeded[2])) if seeded else (name, seed)
        models[name] = Model(name, backbone or Path(source).name, method, seed_of_name, folder, sees_images(folder))
    return models


def checkpoint_name(method: str, seed: int) -> str:
    """The folder under `checkpoints` that train/run.sh trains in."""
    return method if seed == SEED else f"{method}-seed{seed}"


def models_to_train(args: argparse.Namespace, decoder: Path) -> tuple[Models, list[Training]]:
    """The models of a training run, trained already or not, and the trainings that make them.

    The backbone's language model `decoder` is one of them, if it is a folder: what training does to the text
    benchmarks.
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
        "output_dir": out,
        "data_cache": args.run / ROWS,
        "eval_rows": args.held_out,
        "eval_strategy": "epoch",
    }
    settings |= {"image_folder": args.images} if args.images else {}
    return [word for name, value in settings.items() for word in (f"--{name}", str(value))]


def choose_baseline(models: Models, asked: str | None) -> str:
    """The method that others are compared with: the one asked for, or the first.

    Raises:
        UserError: there is no such method among the models.
    """
    methods = [model.method for model in models.values()]
    if asked is not None and asked not in methods:
        raise UserError(f"--baseline {asked}: not among the models ({', '.join(methods)})")
    return asked or methods[0]
