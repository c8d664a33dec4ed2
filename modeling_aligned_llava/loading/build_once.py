"""Folders and files that several processes may want at the same moment: one makes them, the others wait for it.

A lock is a file beside what it guards, `.NAME.lock`, which stays; the system lets go of it however its process ends.
What is being made has a hidden name of its own, unique across hosts and containers, and is renamed when it is whole.
"""

import glob
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from modeling_aligned_llava.errors import UserError


def lock_for(path: Path) -> FileLock:
    """The lock of a file or folder, there or not; `with lock_for(path):` waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def build_once(folder: Path, build: Callable[[Path], object]) -> bool:
    """Make `folder` unless it is there; of several processes that ask at the same moment, one builds.

    Args:
        folder: appears whole or not at all.
        build: fills the empty folder that it is given.

    Returns:
        Whether this call built it.
    """
    if folder.exists():
        return False
    with lock_for(folder):
        if folder.exists():
            return False
        for dead in folder.parent.glob(f".{glob.escape(folder.name)}.{socket.gethostname()}-*.unfinished"):
            shutil.rmtree(dead, ignore_errors=True)  # on this host nobody else builds: the lock is ours
        unfinished = _unfinished(folder)
        unfinished.mkdir()
        try:
            build(unfinished)
            try:
                os.rename(unfinished, folder)
            except OSError:
                if not folder.exists():
                    raise
                return False  # made on another host, to which locks on this file system do not reach
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return True


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a path to write; at the end it takes the place of `file`, which is whole at every moment."""
    file.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _unfinished(file)
    try:
        yield unfinished
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of `path` without waiting for it.

    Raises:
        UserError: another process holds it; `refusal` is the message.
    """
    lock = lock_for(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise UserError(refusal) from None
    try:
        yield
    finally:
        lock.release()


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}.unfinished")
