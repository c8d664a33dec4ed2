"""Ctrl-C and SIGTERM while a program imports its packages, and while it exits; imports nothing that takes time."""

import atexit
import os
import signal
import sys
from types import FrameType
from typing import NoReturn


def end_on_early_signals() -> None:
    """Let a signal end `python -m ...` at once with one line, until `run_main` takes over and lets it clean up.

    While Python exits, when the work is done, signals are ignored. For the `__init__` of a package with programs; does
    nothing where the package is imported by another program.
    """
    if sys.argv[0] != "-m":  # as Python names the program while it imports the packages that hold it
        return
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() == process:  # a forked worker ends without a word
            name = signal.Signals(number).name
            sys.stderr.write(f"error: stopped by {name}; the same command starts again or continues\n")
            sys.stderr.flush()
        os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
        atexit.register(signal.signal, number, signal.SIG_IGN)  # Python drops handlers before it has exited
