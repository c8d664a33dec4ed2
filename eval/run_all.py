"""The whole comparison after the installation, called by `eval/run_all.sh`.

Build the data, train, evaluate each checkpoint as soon as it is trained, write the tables and the report.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from eval.engine.pool import open_pool
from eval.report.answer import answer, write_answer
from eval.report.finished_run import FinishedRun
from eval.report.page.report import write_report
from eval.report.tables.all_tables import write_tables
from eval.run.recipes import read_recipe
from eval.run_options import parse
from eval.scoring.scores import EvaluatedModel
from eval.suite import plan as suite
from eval.suite.finetune import held_out_losses, models_to_finetune, preflight, profile_of_start
from eval.suite.options import SEED, Options
from eval.suite.run import train_and_evaluate
from eval.suite.training import STAGES, START, Training, checkpoint_name
from eval.suite.world import ANSWER_TOKENS, make_world
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.build_once import waiting_lock
from modeling_aligned_llava.loading.files import write_json


def is_trained(folder: Path) -> bool:
    """Whether a training stage has finished in `folder`."""
    return (folder / "training_complete.json").is_file()


def forecast(trainings: Sequence[Training]) -> None:
    """Print the preflight's table of every stage: memory and disk.

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


def models_to_train(args: argparse.Namespace) -> tuple[suite.Models, list[Training]]:
    """The models of a training run, trained already or not, and the steps that train them."""
    models: suite.Models = {}
    trainings = []
    for seed in args.seeds:
        for method in args.methods:
            name = checkpoint_name(method, seed)
            folder = args.run / "checkpoints" / name / "stage2"
            models[name] = (EvaluatedModel(name, args.backbone, method, seed), folder.resolve(), True)
            options = ["--backbone", args.backbone, "--method", method, "--seed", str(seed)]
            options += ["--output-root", str(args.run)]
            options += ["--data", str(args.training_data)] if args.training_data else []
            log = args.run / "logs" / f"train.{method}.{seed}.log"
            for stage in STAGES:
                trainings.append(Training(name, stage, ("bash", "train/run.sh", *options, "--stage", stage), log))
    return models, trainings


def give_answer(
    args: argparse.Namespace, models: suite.Models, run: FinishedRun | None, say: Callable[[str], None]
) -> None:
    """Print the answer of a fine-tuning run and keep it for the report."""
    methods = [args.baseline, *(method for method in args.methods if method != args.baseline)]
    profile = profile_of_start(args, models[START][1])
    name = Path(args.finetune).resolve().name if Path(args.finetune).exists() else args.finetune
    lines = answer(name, profile, held_out_losses(models), run, methods)
    write_answer(args.run, lines)
    say("the answer\n" + "\n".join(lines))


def main() -> None:
    args = parse()
    console = Console()
    waits = f"An earlier run still works in {args.run}; waiting for it (end it yourself, or let it finish)."
    with waiting_lock(args.run / "logs", partial(console.print, waits, highlight=False, soft_wrap=True)):
        compare(args, console)


def compare(args: argparse.Namespace, console: Console) -> None:
    """Train what is to be trained, evaluate, write tables and report; a finished step is left as it is.

    Raises:
        UserError: a step failed, or cannot succeed.
    """

    def say(text: str) -> None:
        console.print(f"\n== {text}", highlight=False, soft_wrap=True)

    run, logs = args.run, args.run / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    trainings: list[Training] = []
    if args.models:
        options = Options.of(args)
        models = suite.read_models(args.models, None, None)
        jobs = suite.plan(options, models)
        say("3 benchmarks")
    elif args.finetune:
        models, trainings = models_to_finetune(args)
        if args.preflight:
            sys.exit(0 if preflight(args, models[START][1]) else 1)
        say(f"2 profile of {args.finetune}")
        profile_of_start(args, models[START][1])
        options = Options.of(args, data=args.data or args.images)
        jobs = suite.plan(options, models, untrained=[training.name for training in trainings]) if args.data else []
        say(f"3 training{' and benchmarks' * bool(args.data)}: {', '.join(models)}")
    else:
        made = read_recipe(args.backbone, "world")
        make_world(args.backbone, run / "data", logs, say)
        models, trainings = models_to_train(args)
        if "decoder" in made and not all(is_trained(folder) for _, folder, _ in models.values()):
            say("3 what training takes, for one method")
            forecast(trainings[: len(STAGES)])
        models |= suite.read_models(bare_decoder(args.backbone), args.backbone, SEED)
        data, longest = args.data or run / "data" / "mirrors", ANSWER_TOKENS if made else None
        options = Options.of(args, data=data, max_new_tokens=longest)
        jobs = suite.plan(options, models, untrained=[training.name for training in trainings])
        say(f"3 training and benchmarks: {', '.join(models)}")
    baseline = suite.baseline_of(models, args.baseline)
    ok = train_and_evaluate(jobs, trainings, logs, open_pool(options.jobs, options.device), console)
    if trainings:
        names = dict.fromkeys(training.name for training in trainings)
        if untrained := [name for name in names if not is_trained(models[name][1])]:
            raise UserError(f"no tables without {', '.join(untrained)}; the same command continues")
        jobs = suite.plan(options, models) if jobs else []
    write_json(options.folder / "run.json", suite.describe_run(options, models, jobs))
    suite.write_scores(options, models, jobs, baseline)
    if options.limit is not None:
        say(f"--limit {options.limit}: a trial, without tables; its scores are in {options.folder / 'scores.json'}")
        sys.exit(0 if ok else 1)
    if jobs:
        say("4 tables")
        write_tables(run)
    if args.finetune:
        give_answer(args, models, FinishedRun.read(run) if jobs else None, say)
    say("5 report")
    write_report(run)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    run_main(main)
