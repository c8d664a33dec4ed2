"""Training and evaluation as one graph: a step for each stage of training and each (checkpoint, harness).

Steps run side by side in threads that wait for their commands, the longest path first. A step that fails stops those
that need it, and no other.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from graphlib import TopologicalSorter
from itertools import cycle, islice
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

import torch
from rich.console import Console

from eval.plan.job import Job
from eval.plan.models import SPANS, Training
from eval.run.evaluation import evaluate
from eval.run.processes import GRACE, Slot, in_slot
from eval.run.status import TRAINING_ROWS, Status
from eval.run.training import train
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import exclusive_lock


Devices = list[str | None]  # CUDA_VISIBLE_DEVICES for each step side by side; None: as it is; "": no GPU


def find_devices(jobs: int | None, device: str) -> Devices:
    """The devices of this machine.

    Args:
        jobs: steps side by side; None for one a GPU, or 2 without GPUs.
        device: "cpu" hides GPUs from all steps, training too.

    Raises:
        UserError: a GPU is asked for and there is none.
    """
    count = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if not count:
        if device.startswith("cuda"):
            raise UserError(f"--device {device}: torch sees no GPU")
        return ["" if device == "cpu" else None] * (jobs or 2)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return list(islice(cycle(names[:count]), jobs or count))


def side_by_side(devices: Devices, trainings: int) -> str:
    """How many of these trainings share a device at a time."""
    return str(min(max(Counter(devices).values()), trainings))


@dataclass(frozen=True)
class Step:
    """Resumable work for one core or GPU.

    Attributes:
        name: unique; `after` refers to it.
        work: called in a thread, and continues when started again; what takes long is a command.
        cost: its duration relative to other steps, which only affects the order.
        after: names of the steps that must succeed first.
    """

    name: str
    work: Callable[[], object]
    cost: float
    after: tuple[str, ...] = ()


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
    with Status(jobs, finished, console, trained) as status:
        left = spread([job for job in left if job.tasks], devices)
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
    if not devices[0] or len(jobs) >= len(devices):
        return jobs
    single = [
        replace(job, tasks=[task for task in job.tasks if task.stock == stock])
        for job in jobs
        for stock in dict.fromkeys(task.stock for task in job.tasks)
    ]
    return sorted(single, key=lambda job: -sum(task.rows for task in job.tasks))


def run_steps(steps: Sequence[Step], devices: Devices, fail: Callable[[str, str], object]) -> bool:
    """Run the steps. An exception of a signal handler or of `fail` cancels the running ones and is raised.

    Args:
        fail: called with the name of a step that failed, or that waited for one, and the reason in one line.

    Returns:
        Whether all succeeded.
    """
    by_name, lengths = {step.name: step for step in steps}, path_lengths(steps)
    graph: TopologicalSorter[str] = TopologicalSorter({step.name: step.after for step in steps})
    graph.prepare()
    ready, done = list(graph.get_ready()), set[str]()
    free, running = [Slot(device) for device in devices], dict[str, tuple[Slot, Thread]]()
    ended: SimpleQueue[tuple[str, BaseException | None]] = SimpleQueue()
    try:
        while ready or running:
            ready.sort(key=lambda name: -lengths[name])  # stable: equal ones in the order given
            while ready and free:
                name, slot = ready.pop(0), free.pop(0)
                thread = Thread(target=_work, args=(by_name[name], slot, ended), daemon=True)
                running[name] = slot, thread
                thread.start()
            name, error = ended.get()
            free.append(running.pop(name)[0])
            if error is None:
                done.add(name)
                graph.done(name)
                ready += graph.get_ready()
            else:
                fail(name, in_one_line(error))
    except BaseException:
        for slot, _ in running.values():
            slot.cancelled.set()
        print(f"stopping; what trains has {GRACE:.0f} s to end its step and save", file=sys.stderr)  # noqa: T201
        for _, thread in running.values():
            thread.join(GRACE + 2)
        raise
    for step in steps:
        if missing := [name for name in step.after if name not in done]:
            fail(step.name, f"not run, because {missing[0]} failed")
    return len(done) == len(steps)


def _work(step: Step, slot: Slot, ended: "SimpleQueue[tuple[str, BaseException | None]]") -> None:
    error = None
    with in_slot(slot):
        try:
            step.work()
        except BaseException as raised:
            error = raised
    ended.put((step.name, error))


def path_lengths(steps: Sequence[Step]) -> dict[str, float]:
    """The cost of each step plus that of the longest chain of steps that wait for it.

    Raises:
        graphlib.CycleError: steps wait for each other.
    """
    costs, lengths = {step.name: step.cost for step in steps}, dict[str, float]()
    for name in reversed(list(TopologicalSorter({step.name: step.after for step in steps}).static_order())):
        lengths[name] = costs[name] + max((lengths[step.name] for step in steps if name in step.after), default=0)
    return lengths


def in_one_line(error: BaseException) -> str:
    """What an exception says, with its type unless it is meant for a user."""
    first = next(iter(str(error).strip().splitlines()), "")
    return first if isinstance(error, UserError) else f"{type(error).__name__}: {first}"
