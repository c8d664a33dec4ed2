"""Training and evaluation as one graph: a step for each stage of training and each (checkpoint, harness)."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from eval.plan.job import Job
from eval.plan.trainings import SPANS, Training
from eval.run.evaluation import evaluate
from eval.run.status import TRAINING_ROWS, Status
from eval.run.steps import Devices, Step, run_steps
from eval.run.training import train
from modeling_aligned_llava.loading.files import exclusive_lock


def only_writer(folder: Path) -> AbstractContextManager[None]:
    """Lock the logs of a run for this process.

    Raises:
        UserError: another evaluation has locked them.
    """
    return exclusive_lock(folder / "logs", f"another evaluation is running in {folder}; wait for it or stop it")


def train_and_evaluate(
    jobs: list[Job], trainings: Sequence[Training], logs: Path, devices: Devices, console: Console
) -> bool:
    """Run the trainings, and evaluate each checkpoint as soon as it is trained, while others are being trained.

    Returns:
        Whether every step and every task succeeded.
    """
    logs.mkdir(parents=True, exist_ok=True)
    trained = list(dict.fromkeys(training.name for training in trainings))
    known = [job for job in jobs if job.name not in trained]
    finished = {(job.name, task.key) for job in known for task in job.tasks if job.is_finished(task)}
    left = [replace(job, tasks=[task for task in job.tasks if (job.name, task.key) not in finished]) for job in jobs]
    left = spread([job for job in left if job.tasks], devices)
    with Status(jobs, finished, console, trained) as status:
        return run_steps(plan_steps(left, trainings, logs, status), devices, status.fail) and not status.failures


def plan_steps(jobs: Sequence[Job], trainings: Sequence[Training], logs: Path, status: Status) -> list[Step]:
    """The steps of these trainings and jobs; those of one checkpoint wait for its latest training."""
    steps: list[Step] = []
    last: dict[str, tuple[str, ...]] = {}  # checkpoint -> its latest training
    for training in trainings:
        rows = sum(task.rows for job in jobs if job.name == training.name for task in job.tasks)
        _, share = SPANS[training.stage]
        cost = TRAINING_ROWS * rows * share
        steps.append(Step(training.step, partial(train, training, status), cost, last.get(training.name, ())))
        last[training.name] = (training.step,)
    for number, job in enumerate(jobs):
        cost = sum(task.rows for task in job.tasks)
        name = f"{job.name} {job.harness} {number}"
        steps.append(Step(name, partial(evaluate, job, logs, status), cost, last.get(job.name, ())))
    return steps


def spread(jobs: list[Job], devices: Devices) -> list[Job]:
    """If there are fewer jobs than GPUs, split them into jobs of one stock task each, the longest first.

    Not on CPUs, where every worker spends ten seconds on importing its harness. Tasks that share an answer log stay
    together, because a log has one writer.
    """
    if devices[0] is None or len(jobs) >= len(devices):
        return jobs
    single = [
        replace(job, tasks=[task for task in job.tasks if task.stock == stock])
        for job in jobs
        for stock in dict.fromkeys(task.stock for task in job.tasks)
    ]
    return sorted(single, key=lambda job: -sum(task.rows for task in job.tasks))
