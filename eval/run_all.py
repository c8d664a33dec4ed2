"""The whole comparison after the installation, called by `eval/run_all.sh`: data, plan, run, score, tables, report."""

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from eval.options import Options, parse_run_all, read_recipe
from eval.plan.evaluations import plan_evaluations
from eval.plan.models import (
    STAGES,
    START,
    Training,
    choose_baseline,
    finetune_settings,
    models_to_finetune,
    models_to_train,
    read_models,
)
from eval.report.answer import answer, held_out_losses
from eval.report.finished_run import ANSWER, FinishedRun
from eval.report.page import write_report
from eval.run.schedule import find_devices, side_by_side, train_and_evaluate
from eval.run.training import ANSWER_TOKENS, can_succeed, images_of_rows, make_world, profile_of_start
from eval.score.results import write_results
from eval.tables.table4 import write_tables
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.files import waiting_lock, write_text
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


def main() -> None:
    sys.exit(0 if compare() else 1)


def compare() -> bool:
    """Train what is to be trained, evaluate each checkpoint as soon as it is trained, write tables and report.

    A finished step is left as it is.

    Returns:
        Whether every step and every task succeeded.

    Raises:
        UserError: a step failed, or cannot succeed.
    """
    args = parse_run_all()
    console = Console()
    show = partial(console.print, highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        show(f"\n== {text}")

    waits = f"An earlier run still works in {args.run}; waiting for it (end it yourself, or let it finish)."
    with waiting_lock(args.run / "logs", partial(show, waits)):
        run, logs = args.run, args.run / "logs"
        logs.mkdir(parents=True, exist_ok=True)

        # Data and models.
        trainings: list[Training] = []
        devices = find_devices(args.jobs, args.device)
        if args.models:
            models = read_models(args.models, None, None)
            options, title = Options.of(args), "3 benchmarks"
        elif args.finetune:
            models, trainings = models_to_finetune(args)
            if args.preflight:
                start, last, seed = models[START].folder, args.methods[-1], args.seeds[0]
                settings = finetune_settings(args, start, last, seed, run / "preflight")
                share = "--side-by-side", side_by_side(devices, len(trainings))
                return can_succeed(sys.executable, "-m", "train.preflight", *settings, "--measure", *share)
            say(f"2 profile of {args.finetune}")
            images = args.images or images_of_rows(args)
            profile = profile_of_start(args, models[START].folder, images)
            options = Options.of(args, data=args.data or images)
            title = f"3 training{' and benchmarks' * bool(args.data)}: {', '.join(models)}"
        else:
            world = read_recipe(args.backbone, "world")
            decoder = Path(read_recipe(args.backbone, "stage1")["language_model"])
            make_world(args.backbone, run / "data", logs, say)
            models, trainings = models_to_train(args, decoder)
            if "decoder" in world and not all(models[training.name].is_trained for training in trainings):
                say("3 what training takes, for one method")
                share = "--side-by-side", side_by_side(devices, len(trainings) // len(STAGES))
                for training in trainings[: len(STAGES)]:
                    if not can_succeed(*training.command, "--preflight", "--", *share):
                        raise UserError(f"training {training.step} cannot succeed")
            data, longest = args.data or run / "data" / "mirrors", ANSWER_TOKENS if world else None
            options = Options.of(args, data=data, max_new_tokens=longest)
            title = f"3 training and benchmarks: {', '.join(models)}"

        # Plan.
        baseline = choose_baseline(models, args.baseline)
        made = list(dict.fromkeys(training.name for training in trainings))
        benchmarked = not args.finetune or args.data
        jobs = plan_evaluations(options, models, untrained=made) if benchmarked else []

        # Run.
        say(title)
        ok = train_and_evaluate(jobs, trainings, logs, devices, console)
        if untrained := [name for name in made if not models[name].is_trained]:
            raise UserError(f"no tables without {', '.join(untrained)}; the same command continues")

        # Score.
        jobs = [replace(job, weights=job.weights or hash_checkpoint(job.checkpoint)) for job in jobs]
        write_results(options, models, jobs, baseline)
        if options.limit is not None:
            scores = options.folder / "scores.json"
            say(f"--limit {options.limit}: a trial, without tables; its scores are in {scores}")
            return ok

        # Tables, answer, report.
        finished = FinishedRun.read(run)
        if jobs:
            say("4 tables")
            write_tables(finished.table, run)
        if args.finetune:
            name = Path(args.finetune).resolve().name if Path(args.finetune).exists() else args.finetune
            methods = [args.baseline, *(method for method in args.methods if method != args.baseline)]
            losses = held_out_losses(models)
            lines = answer(name, profile, losses, finished if jobs else None, methods)
            write_text(run / ANSWER, "\n".join(lines) + "\n")
            say("the answer\n" + "\n".join(lines))
        say("5 report")
        write_report(finished)
        return ok


if __name__ == "__main__":
    run_main(main)
