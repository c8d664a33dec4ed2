"""The processes of a step: they end with the step, however that ends, and have the step's GPU."""

import os
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modeling_aligned_llava.errors import NOT_A_TERMINAL, UserError


GRACE = 60.0  # seconds between SIGTERM and SIGKILL: training finishes its step and saves a checkpoint
WAKE = 0.5  # seconds after which a cancelled step notices
SILENCE = 30.0  # seconds without a line, after which one says what runs


@dataclass(frozen=True)
class Slot:
    """What the step of a thread has: its GPUs as CUDA_VISIBLE_DEVICES, and whether it is to end."""

    device: str | None = None
    cancelled: threading.Event = field(default_factory=threading.Event)


_here = threading.local()


@contextmanager
def in_slot(slot: Slot) -> Iterator[None]:
    """Give the processes that this thread starts a slot."""
    _here.slot = slot
    try:
        yield
    finally:
        del _here.slot


def _slot() -> Slot:
    return getattr(_here, "slot", Slot())


@contextmanager
def child(command: Sequence[str], **options: Any) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a command as the leader of a process group, and wait for its end when the block ends.

    The group is stopped if the block raises, and gets SIGTERM if this process is killed.
    """
    dies_with_us = ["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []  # of util-linux
    if (device := _slot().device) is not None:
        options["env"] = {**(options.get("env") or os.environ), "CUDA_VISIBLE_DEVICES": device}
    process = subprocess.Popen([*dies_with_us, *command], process_group=0, **options)  # noqa: S603
    try:
        yield process
        process.wait()
    except BaseException:
        _signal(process, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
        raise
    finally:
        if process.returncode != 0:
            _signal(process, signal.SIGKILL)  # also what outlives the leader of the group
        process.wait()


def run_logged(
    command: Sequence[str],
    log: Path,
    watch: Callable[[str], object] = lambda line: None,
    tick: Callable[[], object] | None = None,
    **environment: str,
) -> None:
    """Run a command to its end: each line that it prints is added to `log`, and given to `watch`.

    Args:
        tick: called about twice a second. None: a line every half minute says that the command still runs.

    Raises:
        UserError: the command failed; the message is its error line, or its last line.
    """
    printed: list[str] = []
    pipe, environ = subprocess.PIPE, os.environ | NOT_A_TERMINAL | environment
    with (
        log.open("a", encoding="utf-8") as file,
        child(command, stdout=pipe, stderr=subprocess.STDOUT, env=environ) as process,
    ):
        for line in lines(process, tick or _patience(log)):
            print(line, file=file, flush=True)
            printed.append(line)
            watch(line)
    if process.returncode:
        raise UserError(f"{_failure(printed, process.returncode)}; see {log}")


def _patience(log: Path) -> Callable[[], None]:
    begun = spoke = time.monotonic()

    def tick() -> None:
        nonlocal spoke
        if time.monotonic() - spoke >= SILENCE:
            spoke = time.monotonic()
            print(f"{log.stem}: {spoke - begun:.0f} s so far, see {log}", flush=True)  # noqa: T201

    return tick


def _signal(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def lines(process: "subprocess.Popen[bytes]", tick: Callable[[], object]) -> Iterator[str]:
    """What a process prints, line by line, without a last one that it did not end; `tick` is called while it waits.

    Raises:
        InterruptedError: the step was cancelled.
    """
    assert process.stdout is not None
    output, rest = process.stdout.fileno(), b""
    while True:
        if _slot().cancelled.is_set():
            raise InterruptedError("cancelled")
        tick()
        if not select.select([output], [], [], WAKE)[0]:
            continue
        part = os.read(output, 1 << 16)
        if not part:
            return
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")


def _failure(printed: Sequence[str], code: int) -> str:
    """Why a command failed, in one line: its error message, else its last line, else its exit status."""
    killed_by = -code if code < 0 else code - 128  # a shell reports a child killed by a signal as 128 + signal
    if killed_by > 0:
        return f"killed by signal {killed_by}"
    errors = [line for line in printed if re.match(r"(error: |[\w.]*(Error|Exception): )", line)]
    return next(reversed(errors or [line for line in printed if line]), f"exit status {code}").removeprefix("error: ")
