"""Run steps with dependencies on a few slots (cores, GPUs), the longest path first; one failure stops all."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any


Place = str | None  # a GPU by its index, or None for the CPU
GRACE = 8.0  # seconds between SIGTERM and SIGKILL: training finishes its step and saves a checkpoint


@dataclass(frozen=True)
class Step:
    """Work for one slot.

    Attributes:
        name: unique; `after` refers to it.
        work: called with the slot's place, in its own thread.
        cost: its duration relative to other steps, which only affects the order.
        after: names of the steps that must finish first.
    """

    name: str
    work: Callable[[Place], None]
    cost: float
    after: tuple[str, ...] = ()


class Children:
    """The processes of a run, each the leader of a process group. They are stopped together with all they started."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.alive: list[subprocess.Popen[str]] = []
        self.ended = False

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[str]:
        """`subprocess.Popen`, unless the run is ending.

        Raises:
            InterruptedError: `end` was called.
        """
        with self.lock:
            if self.ended:
                raise InterruptedError("the run is ending")
            process = subprocess.Popen(command, text=True, process_group=0, **options)  # noqa: S603
            self.alive.append(process)
        return process

    def wait(self, process: subprocess.Popen[str]) -> int:
        """Exit status of `process`, negative for a signal.

        Raises:
            InterruptedError: `end` was called, so the status says nothing about the process itself.
        """
        code = process.wait()
        with self.lock:
            if self.ended:
                raise InterruptedError("the run is ending")
            self.alive.remove(process)
        if code:
            _signal([process], signal.SIGKILL)  # the rest of its group
        return code

    def end(self) -> None:
        """Stop every group: SIGTERM, then SIGKILL to what is left after `GRACE` seconds."""
        with self.lock:
            self.ended = True
        deadline = time.monotonic() + GRACE
        _signal(self.alive, signal.SIGTERM)
        for process in self.alive:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                break
        _signal(self.alive, signal.SIGKILL)  # also what outlived the leader of its group


def _signal(processes: list[subprocess.Popen[str]], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            continue


def path_lengths(steps: Sequence[Step]) -> dict[str, float]:
    """The cost of each step plus that of the longest chain of steps that wait for it.

    Raises:
        ValueError: a step waits for an unknown step, or for itself.
    """
    by_name = {step.name: step for step in steps}
    followers: dict[str, list[str]] = {name: [] for name in by_name}
    for step in steps:
        for name in step.after:
            if name not in by_name:
                raise ValueError(f"{step.name} waits for {name}, which is not a step")
            followers[name].append(step.name)
    lengths: dict[str, float] = {}

    def length(name: str, path: tuple[str, ...]) -> float:
        if name in path:
            raise ValueError(f"{name} waits for itself")
        if name not in lengths:
            ahead = [length(follower, (*path, name)) for follower in followers[name]]
            lengths[name] = by_name[name].cost + max(ahead, default=0.0)
        return lengths[name]

    return {name: length(name, ()) for name in by_name}


def run_steps(steps: Sequence[Step], places: Sequence[Place], children: Children) -> None:
    """Run every step, one at a time on each of `places`.

    An exception, from a step or a signal handler, stops `children` and is raised; waiting steps are not started.
    """
    lengths = path_lengths(steps)
    waiting = sorted(steps, key=lambda step: -lengths[step.name])  # stable: equal ones in the order given
    free, running, done = list(places), dict[Future[None], tuple[Step, Place]](), set[str]()
    with ThreadPoolExecutor(len(places)) as pool:
        try:
            while waiting or running:
                for step in [step for step in waiting if done.issuperset(step.after)][: len(free)]:
                    waiting.remove(step)
                    place = free.pop(0)
                    running[pool.submit(step.work, place)] = (step, place)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    step, place = running.pop(future)
                    future.result()
                    free.append(place)
                    done.add(step.name)
        except BaseException:
            children.end()
            raise
