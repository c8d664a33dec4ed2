"""Making what is evaluated: a small backbone's world, trainings, and what is measured before them."""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from eval.options import read_recipe
from eval.plan.models import ROWS, START, Training
from eval.run.processes import run_logged
from eval.run.status import Status
from modeling_aligned_llava.loading.files import read_json


ANSWER_TOKENS = 16  # longer than any right answer in the worlds of the small backbones
BACKBONES = {"decoder": "language_model", "tower": "vision_tower"}  # in world.yaml, and in the recipe of stage 1
PROFILED = 48  # images that tell whether the visual tokens of a model are inert


def train(training: Training, status: Status) -> None:
    """Run a training to its end.

    Raises:
        UserError: it failed; the message is its error line, or its last line.
    """

    def watch(line: str) -> None:
        if line.startswith('{"step"'):  # a log of train.sft for programs
            log = json.loads(line)
            status.train(training.name, training.stage, log["step"] / log["steps"], log.get("seconds_left"))

    run_logged(training.command, training.log, watch, status.tick, PROGRESS_JSON="1")
    status.trained(training.name, training.stage)


def make_world(backbone: str, data: Path, logs: Path, say: Callable[[str], object] = lambda text: None) -> None:
    """What the recipes of a small backbone need and no Hub has, as its `world.yaml` says, unless it is there: its data
    in `data`, decoder and tower where stage 1 expects them.

    Raises:
        UserError: one of the programs failed; its output is in `logs`.
    """
    world, stage1 = read_recipe(backbone, "world"), read_recipe(backbone, "stage1")
    if world:
        say(f"2 data: {data}")
        if not data.exists():
            command = [sys.executable, "-m", "tinyworld.build", str(data), "--world", world["world"]]
            run_logged(command, logs / "data.log")
    for part, setting in BACKBONES.items():
        if part in world:
            folder = Path(stage1[setting])
            say(f"2 {part}: {folder}")
            if not folder.exists():
                run_logged([sys.executable, "-m", world[part], str(folder)], logs / f"{part}.log")


def can_succeed(*preflight: str) -> bool:
    """Let a command print what a training takes, memory and disk; whether it says that the training can succeed."""
    return not subprocess.run(preflight).returncode  # noqa: S603


def images_of_rows(args: argparse.Namespace) -> Path:
    """A folder with the first images of training rows that embed them.

    Raises:
        UserError: no row has an image.
    """
    folder = args.run / "images"
    if not folder.is_dir():
        words = ["-m", "train.data", "images", args.training_data, "--limit", str(PROFILED), "--out", str(folder)]
        run_logged([sys.executable, *words, "--data-cache", str(args.run / ROWS)], args.run / "logs" / "images.log")
    return folder


def profile_of_start(args: argparse.Namespace, folder: Path, images: Path) -> dict[str, Any]:
    """The profile of the model as it is, measured once.

    Raises:
        UserError: it cannot be measured.
    """
    path = args.run / "diagnostics" / f"{START}.json"
    if not path.exists():
        words = [sys.executable, "-m", "eval.diagnostics", "profile", str(folder), "--images", str(images)]
        run_logged([*words, "--limit", str(PROFILED), "--json", str(path)], args.run / "logs" / "profile.log")
    return read_json(path)
