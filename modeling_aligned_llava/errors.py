"""What our programs print: their own lines, and for errors of a user and signals one line, without a traceback."""

import errno
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from textwrap import shorten
from types import FrameType
from typing import NoReturn

from huggingface_hub.utils import disable_progress_bars


STOPPING = (signal.SIGINT, signal.SIGTERM)
# For programs whose lines are read: FORCE_COLOR would make them draw a live table instead.
NOT_A_TERMINAL = {"TTY_COMPATIBLE": "0"}
OURS = "(modeling_aligned_llava|train|eval|tinyworld|__main__)"
OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class UserError(Exception):
    """An error that the user can fix; its message is one line: what, where and what to do."""

    status = 1  # of the program that it ends


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM. Not an `Exception`, so that no library takes it for the failure of one item."""

    def __init__(self, number: int, further: str = "the same command starts again or continues"):
        super().__init__(f"stopped by {signal.Signals(number).name}; {further}")
        self.number = number


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a command-line program.

    On a `UserError`, print `error: ...` and exit with its status; likewise, with 1, if a file cannot be opened or
    written because the disk is full or read-only, or belongs to somebody else. On Ctrl-C and SIGTERM, let every
    `finally` run, print a line, and exit with 128 + the number of the signal.
    """
    quiet()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal of ASCII shows ? for a degree sign
    received: list[int] = []
    try:
        with _raising_on_signals(received):
            main()
    except UserError as error:
        # From a data-loading worker the message comes at the end of that worker's traceback.
        line = str(error).strip().rpartition("\n")[2].removeprefix(f"{__name__}.UserError: ")
        _end(line, error.status)
    except OSError as error:
        if error.errno not in OF_THE_DISK:
            raise
        _end(f"{error.filename or 'a file cannot be written'}: {str(error.strerror).lower()}", 1)
    except KeyboardInterrupt as error:
        stopped = error if isinstance(error, Stopped) else Stopped(received[0])  # Ray raises its own instead
        _end(str(stopped), 128 + stopped.number)


def _end(line: str, status: int) -> NoReturn:
    print(f"error: {line}", file=sys.stderr)  # noqa: T201
    sys.exit(status)


@contextmanager
def _raising_on_signals(received: list[int]) -> Iterator[None]:
    """Raise `Stopped` on the first signal, which is added to `received`, and ignore later ones: nothing interrupts
    cleaning up.
    """
    process = os.getpid()

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        if os.getpid() != process:
            os._exit(128 + number)  # a forked worker has nothing to clean up
        for stopping in STOPPING:
            signal.signal(stopping, signal.SIG_IGN)
        received.append(number)
        raise Stopped(number)

    before = {stopping: signal.signal(stopping, stop) for stopping in STOPPING}
    try:
        yield
    finally:
        for stopping, handler in before.items():
            signal.signal(stopping, handler)


@contextmanager
def errors_named(what: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn an error of a library, the Hub's client or a model's own code into one line that begins with `what`.

    Args:
        kinds: those that are turned; none: all of them, and the line has their class, too.

    Raises:
        UserError: there was one.
    """
    turned = kinds or (Exception,)
    try:
        yield
    except UserError:
        raise
    except turned as error:
        kind = "" if kinds else f"{type(error).__name__}: "
        # Without the queries of addresses: those of signed ones are keys.
        text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", str(error))
        raise UserError(f"{what}: {kind}{shorten(text, 500)}") from error


def quiet() -> None:
    """Silence progress bars and Python warnings of libraries; errors, logged warnings and our own warnings stay.

    `python -W default` shows the warnings again.
    """
    disable_progress_bars()  # one for each of a dozen small files; transformers, imported later, follows it
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=rf"(?!{OURS}(\.|$))")
