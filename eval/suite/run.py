"""One run of training and evaluation: a step for each stage of training and each (checkpoint, harness)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from eval.engine.pool import Pool
from eval.engine.steps import Event, Step, run_steps
from eval.suite.evaluation import evaluate, is_finished
from eval.suite.job import Job
from eval.suite.status import TRAINING_ROWS, Status
from eval.suite.training import Training
from modeling_aligned_llava.loading.build_once import exclusive_lock


def only_writer(run: Path) -> AbstractContextManager[None]:
    """Lock the logs of a run for this process.

    Raises:
        UserError: another evaluation has locked them.
    """
    return exclusive_lock(run / "logs", f"another evaluation is running in {run}; wait for it or stop it")


def train_and_evaluate(
    jobs: list[Job], trainings: Sequence[Training], logs: Path, pool: Pool, console: Console
) -> bool:
    """Run the trainings, and evaluate each checkpoint as soon as it is trained, while others are being trained.

    Returns:
        Whether every step and every task succeeded.
    """
    logs.mkdir(parents=True, exist_ok=True)
    trained = list(dict.fromkeys(training.name for training in trainings))
    known = [job for job in jobs if job.name not in trained]
    finished = {(job.name, task.key) for job in known for task in job.tasks if is_finished(job, task)}
    left = [replace(job, tasks=[task for task in job.tasks if (job.name, task.key) not in finished]) for job in jobs]
    left = spread([job for job in left if job.tasks], pool)
    steps = steps_of(left, trainings, logs)

    def watch(_: str, event: Event) -> None:
        status.show(event)

    with Status(jobs, finished, console, trained) as status:
        return run_steps(steps, pool, watch, status.fail) and not status.failures


def steps_of(jobs: Sequence[Job], trainings: Sequence[Training], logs: Path) -> list[Step]:
    """The steps of these trainings and jobs; those of one checkpoint wait for its latest training."""
    steps: list[Step] = []
    last: dict[str, tuple[str, ...]] = {}  # checkpoint -> its latest training
    for training in trainings:
        rows = sum(task.rows for job in jobs if job.name == training.name for task in job.tasks)
        cost = TRAINING_ROWS * rows * training.share
        steps.append(Step(training.step, training.run, cost, last.get(training.name, ())))
        last[training.name] = (training.step,)
    for number, job in enumerate(jobs):
        cost = sum(task.rows for task in job.tasks)
        name = f"{job.name} {job.harness} {number}"
        steps.append(Step(name, partial(evaluate, job, logs), cost, last.get(job.name, ())))
    return steps


def spread(jobs: list[Job], pool: Pool) -> list[Job]:
    """If there are fewer jobs than GPUs, split them into jobs of one stock task each, the longest first.

    Not on CPUs, where every worker spends ten seconds on importing its harness. Tasks that share an answer log stay
    together, because a log has one writer.
    """
    if pool.resource == "CPU" or len(jobs) >= pool.slots():
        return jobs
    single = [
        replace(job, tasks=[task for task in job.tasks if task.stock == stock])
        for job in jobs
        for stock in dict.fromkeys(task.stock for task in job.tasks)
    ]
    return sorted(single, key=lambda job: -sum(task.rows for task in job.tasks))
