"""Run steps with dependencies, the longest path first, side by side in threads that wait for their commands.

A step that fails stops those that need it, and no other.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import cycle, islice
from queue import SimpleQueue
from threading import Thread

import torch

from eval.run.processes import GRACE, Slot, in_slot
from modeling_aligned_llava.errors import UserError


Devices = list[str | None]  # what CUDA_VISIBLE_DEVICES is for each step side by side; None where there is no GPU


def find_devices(jobs: int | None, device: str) -> Devices:
    """The devices of this machine.

    Args:
        jobs: steps side by side; None for one a GPU, or 2 without GPUs.
        device: "cpu" leaves GPUs alone.
    """
    count = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if not count:
        return [None] * (jobs or 2)
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return list(islice(cycle(names[:count]), jobs or count))


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
