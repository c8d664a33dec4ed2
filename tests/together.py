"""Eight processes that start the same work at the same moment; processes that are killed with all they started, and
whether one handles a signal."""

import multiprocessing
import queue
import signal
import subprocess
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil


PROCESSES = 8


def together(work: Callable[[int], Any], rounds: int) -> list[list[Any]]:
    """What `work(round)` returned in each process, for each round; processes are forked, and wait for each other.

    Raises:
        AssertionError: with the traceback of what any of them raised.
    """
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(PROCESSES), context.Queue()

    def run() -> None:
        done = []
        for number in range(rounds):
            barrier.wait(timeout=120)
            try:
                done.append((None, work(number)))
            except Exception:
                done.append((traceback.format_exc(), None))
        results.put(done)

    processes = [context.Process(target=run) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    try:
        by_process = [_next(results, processes) for _ in processes]
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.kill()  # those that hang would slow down every later test
    errors = [error for done in by_process for error, _ in done if error]
    assert not errors, f"{len(errors)} failed, the first: {errors[0]}"
    return [[result for _, result in of_round] for of_round in zip(*by_process, strict=True)]


def _next(results: multiprocessing.Queue, processes: Sequence[BaseProcess]) -> Any:
    while True:
        try:
            return results.get(timeout=5)
        except queue.Empty:
            died = [process.exitcode for process in processes if process.exitcode]
            assert not died, f"processes ended with {died}"


def catches(pid: int, number: signal.Signals) -> bool:
    """Whether the process has a handler for the signal."""
    status = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    return bool(caught >> (number - 1) & 1)


def kill_all(process: subprocess.Popen) -> None:
    """Send SIGKILL to a process and all that it started; torchrun's workers are process groups of their own."""
    tree = psutil.Process(process.pid)
    for member in [tree, *tree.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            member.kill()
    process.wait()


def alone(work: Callable[[], Any]) -> None:
    """Run `work` in a forked process: this one then holds no lock that later forks would inherit."""
    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    assert process.exitcode == 0
