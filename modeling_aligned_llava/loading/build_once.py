"""Folders and files that several processes may need at the same moment: one creates them, the others wait.

A lock is a file next to what it guards, `.NAME.lock`, which stays; the system releases it however its process ends.
Unfinished work has a hidden name, unique across hosts and containers, and is renamed once it is complete.
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
from modeling_aligned_llava.loading.disk_errors import disk_errors_named


def lock_for(path: Path) -> FileLock:
    """The lock of a file or folder, which need not exist; `with lock_for(path):` waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path.with_name(f".{path.name}.lock"))


def build_once(folder: Path, build: Callable[[Path], object]) -> bool:
    """Create `folder` unless it exists; if several processes call this at the same moment, one of them builds.

    Args:
        folder: appears complete or not at all.
        build: fills the empty folder that it is given.

    Returns:
        Whether this call built it.

    Raises:
        UserError: the disk is full or read-only.
    """
    if folder.exists():
        return False
    with disk_errors_named(folder), lock_for(folder):
        if folder.exists():
            return False
        for dead in folder.parent.glob(f".{glob.escape(folder.name)}.{socket.gethostname()}-*.unfinished"):
            shutil.rmtree(dead, ignore_errors=True)  # nobody else on this host builds: we hold the lock
        unfinished = _unfinished(folder)
        unfinished.mkdir()
        try:
            build(unfinished)
            try:
                os.rename(unfinished, folder)
            except OSError:
                if not folder.exists():
                    raise
                return False  # built by another host that does not share this file system's locks
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return True


@contextmanager
def replacing(file: Path) -> Iterator[Path]:
    """Yield a path to write to; at the end it replaces `file`, which is complete at every moment.

    Raises:
        UserError: the disk is full or read-only; `file` is what it was.
    """
    unfinished = _unfinished(file)
    with disk_errors_named(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield unfinished
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)


@contextmanager
def exclusive_lock(path: Path, refusal: str) -> Iterator[None]:
    """Hold the lock of `path`, without waiting for it.

    Raises:
        UserError: another process holds it; `refusal` is the message.
    """
    try:
        with disk_errors_named(path):
            lock = lock_for(path)
            lock.acquire(blocking=False)
    except Timeout:
        raise UserError(refusal) from None
    try:
        yield
    finally:
        lock.release()


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}.unfinished")
