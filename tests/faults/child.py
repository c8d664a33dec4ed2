"""Work in a forked child, so that a crash, a hang or the memory it takes is seen from outside."""

import multiprocessing
import resource
from collections.abc import Callable
from multiprocessing.sharedctypes import Synchronized
from typing import Any


def in_child(work: Callable[[Synchronized], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """What `work(current)` returns, and `peak_mib`, by which its resident memory grew at most.

    Args:
        work: keeps `current.value` at the number of the input that it works on.
        seconds: limit for a single input.

    Raises:
        AssertionError: with the number of the input, if the child crashed or hung on it or raised an error.
    """
    context = multiprocessing.get_context("fork")
    current = context.Value("i", 0)
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
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
    last = -1
    while not receiver.poll(seconds):
        if current.value == last:
            process.kill()
            process.join()
            raise AssertionError(f"input {last} hangs for {seconds} s")
        last = current.value
    try:
        found = receiver.recv()
    except EOFError:
        found = None
    process.join()
    assert found is not None, f"input {current.value} crashes the interpreter (exit code {process.exitcode})"
    assert isinstance(found, dict), f"input {current.value}: {found}"
    return found
