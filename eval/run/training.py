"""Making what is evaluated: a small backbone's world, trainings, and what is measured before and after them."""

import argparse
import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from eval.options import read_recipe
from eval.plan.models import Models
from eval.plan.trainings import START, Training, finetune_settings
from eval.run.processes import run_logged
from eval.run.status import Status
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


ANSWER_TOKENS = 16  # longer than any right answer in the worlds of the small backbones
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

    run_logged(training.command, training.log, watch, PROGRESS_JSON="1")
    status.trained(training.name, training.stage)


def make_world(backbone: str, data: Path, logs: Path, say: Callable[[str], object] = lambda text: None) -> None:
    """What the recipes of a small backbone need and no Hub has, as its `world.yaml` says, unless it is there: its data
    in `data`, and its decoder where stage 1 expects it.

    Raises:
        UserError: one of the programs failed; its output is in `logs`.
    """
    world = read_recipe(backbone, "world")
    if world:
        say(f"2 data: {data}")
        if not data.exists():
            command = [sys.executable, "-m", "tinyworld.build", str(data), "--world", world["world"]]
            run_logged(command, logs / "data.log")
    if "decoder" in world:
        decoder = Path(read_recipe(backbone, "stage1")["language_model"])
        say(f"2 language model: {decoder}")
        if not decoder.exists():
            run_logged([sys.executable, "-m", world["decoder"], str(decoder)], logs / "decoder.log")


def forecast(trainings: Sequence[Training]) -> None:
    """Print the preflight's table of every stage: memory and disk.

    Raises:
        UserError: one of them cannot succeed.
    """
    for training in trainings:
        if subprocess.run([*training.command, "--preflight"]).returncode:  # noqa: S603
            raise UserError(f"training {training.step} cannot succeed")


def forecast_finetuning(args: argparse.Namespace, folder: Path) -> bool:
    """Print what one of the trainings takes, measured on two steps; whether it can succeed."""
    settings = finetune_settings(args, folder, args.methods[-1], args.seeds[0], args.run / "preflight")
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
        run_logged(words, args.run / "logs" / "profile.log")
        unfinished.replace(path)
    profile = read_json(path)
    if profile is None:
        raise UserError(f"{path} is damaged: remove it")
    return profile


def held_out_losses(models: Models) -> dict[str, dict[int, float]]:
    """Method -> seed -> mean loss on the rows kept from training, after the last step.

    Raises:
        UserError: a loss is not finite.
    """
    losses: dict[str, dict[int, float]] = {}
    for model in models.values():
        log = model.folder / "log.jsonl"
        text = log.read_text(encoding="utf-8") if log.is_file() else ""
        measured = [line["eval_loss"] for line in map(json.loads, text.splitlines()) if "eval_loss" in line]
        if measured and not math.isfinite(measured[-1]):
            raise UserError(f"{log}: the held-out loss is {measured[-1]}: the training diverged; lower learning_rates")
        if measured and model.seed is not None:
            losses.setdefault(model.method, {})[model.seed] = measured[-1]
    return losses
