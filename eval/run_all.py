"""The whole comparison after the installation, called by `eval/run_all.sh`, which explains and checks the options.

Build the data, train, evaluate each checkpoint as soon as it is trained, write the tables and the report.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from eval.report.page.report import write_report
from eval.report.tables.all_tables import write_tables
from eval.run.recipes import read_recipe
from eval.scoring.scores import EvaluatedModel
from eval.suite import plan as suite
from eval.suite.runner import Runner, only_writer, places
from eval.suite.training import SEED, STAGES, Training, checkpoint_name
from eval.suite.world import ANSWER_TOKENS, make_world
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.files import write_json


def parser() -> argparse.ArgumentParser:
    """The options of training; what it does not know goes to `eval.suite`."""
    p = argparse.ArgumentParser(
        prog="python -m eval.run_all", description=__doc__.split("\n\n")[0], allow_abbrev=False
    )
    p.add_argument("--run", required=True, type=Path)
    p.add_argument("--backbone", default="tinyworld", help="folder under configuration/train")
    p.add_argument("--training-data", type=Path, help="--data of train/run.sh")
    p.add_argument("--methods", nargs="+")
    p.add_argument("--seeds", nargs="+", type=int, default=[SEED])
    p.add_argument("--baseline")
    p.add_argument("--models", nargs="+", metavar="NAME=PATH", help="checkpoints that exist; nothing is trained")
    p.add_argument("--data", type=Path)
    return p


def is_trained(folder: Path) -> bool:
    """Whether a training stage has finished in `folder`."""
    return (folder / "training_complete.json").is_file()


def forecast(trainings: Sequence[Training]) -> None:
    """Print the preflight's table of every stage: memory, disk, hours.

    Raises:
        UserError: one of them cannot succeed.
    """
    for training in trainings:
        if subprocess.run([*training.command, "--preflight"]).returncode:  # noqa: S603
            raise UserError(f"training {training.step} cannot succeed")


def bare_decoder(backbone: str) -> list[str]:
    """NAME=PATH of the backbone's language model, if it is a folder: what training does to the text benchmarks."""
    folder = Path(read_recipe(backbone, "stage1")["language_model"])
    return [f"language-model={folder}"] if (folder / "config.json").is_file() else []


def models_to_train(own: argparse.Namespace) -> tuple[suite.Models, list[Training]]:
    """The models of a training run, trained already or not, and the steps that train them."""
    models: suite.Models = {}
    trainings = []
    for seed in own.seeds:
        for method in own.methods:
            name = checkpoint_name(method, seed)
            folder = own.run / "checkpoints" / name / "stage2"
            models[name] = (EvaluatedModel(name, own.backbone, method, seed), folder.resolve(), True)
            options = ["--backbone", own.backbone, "--method", method, "--seed", str(seed)]
            options += ["--output-root", str(own.run)]
            options += ["--data", str(own.training_data)] if own.training_data else []
            log = own.run / "logs" / f"train.{method}.{seed}.log"
            for stage in STAGES:
                trainings.append(Training(name, stage, ("bash", "train/run.sh", *options, "--stage", stage), log))
    return models, trainings


def main() -> None:
    own, theirs = parser().parse_known_args()
    console = Console()

    def say(text: str) -> None:
        console.print(f"\n== {text}", highlight=False, soft_wrap=True)

    run, logs = own.run, own.run / "logs"
    trainings: list[Training] = []
    if own.models:
        options = ["--run", str(run), "--data", str(own.data), "--models", *own.models, *theirs]
        args = suite.parser().parse_args(options)
        folder = suite.folder_of(args)
        models, jobs = suite.plan(args, folder)
        say("3 benchmarks")
    else:
        made = read_recipe(own.backbone, "world")
        make_world(own.backbone, run / "data", logs, say)
        models, trainings = models_to_train(own)
        if "decoder" in made and not all(is_trained(folder) for _, folder, _ in models.values()):
            say("3 what training takes, for one method")
            forecast(trainings[: len(STAGES)])
        decoder = bare_decoder(own.backbone)
        named = [*(f"{name}={folder}" for name, (_, folder, _) in models.items()), *decoder]
        options = ["--run", str(run), "--data", str(own.data or run / "data" / "mirrors"), "--models", *named]
        options += ["--backbone", own.backbone, "--seed", str(SEED)]
        options += ["--max-new-tokens", str(ANSWER_TOKENS)] if made else []
        args = suite.parser().parse_args([*options, *theirs])
        folder = suite.folder_of(args)
        models |= suite.read_models(decoder, own.backbone, SEED)
        untrained = [training.name for training in trainings]
        jobs = suite.plan_jobs(args, models, folder, untrained=untrained)
        say(f"3 training and benchmarks: {', '.join(models)}")
    baseline = suite.baseline_of(models, own.baseline)
    with only_writer(run):
        ok = Runner(logs, places(args.jobs, args.device), console).run(jobs, trainings)
        if trainings:
            models, jobs = suite.plan(args, folder)
        write_json(folder / "run.json", suite.describe_run(args, models, jobs))
        suite.write_scores(args, models, jobs, baseline)
    if args.limit is not None:
        say(f"--limit {args.limit}: a trial, without tables; its scores are in {folder / 'scores.json'}")
        sys.exit(0 if ok else 1)
    say("4 tables")
    write_tables(run)
    say("5 report")
    write_report(run)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    run_main(main)
