"""Work in a forked child, so that a crash, a hang or the memory it takes is seen from outside."""

import multiprocessing
import resource
import time
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import psutil


LARGEST = 8 * 2**30  # bytes of address space
PATIENCE = 20  # seconds on the clock per second of computing: other programs may need the cores


def in_child(work: Callable[[Synchronized], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What `work(current)` returns, and `peak_mib`, by which its resident memory grew at most.

    Args:
        work: keeps `current.value` at the number of the input that it works on.
        seconds: of computing, limit for a single input.

    Raises:
        AssertionError: with the number of the input, if the child crashed or hung on it or raised an error.
    """
    context = multiprocessing.get_context("fork")
    current = context.Value("i", 0)
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        size = psutil.Process().memory_info().vms
        resource.setrlimit(resource.RLIMIT_AS, (size + LARGEST, size + LARGEST))  # an error, not an end by the system
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            found = work(current)
        except BaseException as error:
            sender.send(f"{type(error).__name__}: {error}")
        else:
            peak = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024
            sender.send({**found, "peak_mib": float(peak)})

    process = context.Process(target=run)
    process.start()
    sender.close()
    watched, last, computed, since = psutil.Process(process.pid), -1, 0.0, 0.0
    while not receiver.poll(1):
        times = watched.cpu_times()
        if current.value != last:
            last, computed, since = current.value, times.user + times.system, time.monotonic()
        elif times.user + times.system > computed + seconds or time.monotonic() > since + PATIENCE * seconds:
            process.kill()
            process.join()
            raise AssertionError(f"input {last} hangs")
    try:
        found = receiver.recv()
    except EOFError:
        found = None
    process.join()
    assert found is not None, f"input {current.value} crashes the interpreter (exit code {process.exitcode})"
    assert isinstance(found, dict), f"input {current.value}: {found}"
    return found
