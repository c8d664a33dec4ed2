"""Files and folders that are whole or not there, written by one process at a time; a full disk is one line.

A lock is a file next to what it guards, `.NAME.lock`, which stays; the system releases it however its process ends.
Unfinished work has a hidden name, unique across hosts and containers, and is renamed once it is complete.
"""

import errno
import glob
import json
import os
import shutil
import socket
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout

from modeling_aligned_llava.errors import UserError


_REASONS = {
    errno.ENOSPC: "no space left on its disk; free some and start again",
    errno.EDQUOT: "no space left in its quota; free some and start again",
    errno.EROFS: "its file system is read-only; choose another folder",
}
_TEXTS = {"No space left on device": errno.ENOSPC, "Read-only file system": errno.EROFS}
_OF_TORCH = ("inline_container", "iostream error")  # torch.save does not say why it could not write
_FULL = 1 << 20  # bytes


def write_text(path: Path, text: str) -> None:
    """Write atomically, unless the file has this content already."""
    content = text.encode()  # bytes: read_text would turn a carriage return into a newline
    if path.is_file() and path.read_bytes() == content:
        return
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


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

    def refuse() -> NoReturn:
        raise UserError(refusal) from None

    with waiting_lock(path, refuse):
        yield


@contextmanager
def waiting_lock(path: Path, wait: Callable[[], object]) -> Iterator[None]:
    """Hold the lock of `path`; call `wait` before waiting for another process that holds it."""
    try:
        with disk_errors_named(path):
            lock = lock_for(path)
            lock.acquire(blocking=False)
    except Timeout:
        wait()
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex}.unfinished")


@contextmanager
def disk_errors_named(path: str | Path) -> Iterator[None]:
    """Turn an error of the disk inside the block into one that names `path`; other errors stay as they are.

    Raises:
        UserError: the disk is full or read-only.
    """
    try:
        yield
    except Exception as error:  # each library has its own class for them
        reason = _reason(error, Path(path))
        if reason is None:
            raise
        raise UserError(f"cannot write {path}: {reason}") from error


def require_space(folder: Path, needed: int, what: str) -> str:
    """`what: N GB, M GB free in FOLDER`, if that fits.

    Args:
        folder: must exist.
        needed: bytes.
        what: what needs them.

    Raises:
        UserError: the disk has less.
    """
    free = shutil.disk_usage(folder).free
    text = f"{what}: {_gigabytes(needed)}, {_gigabytes(free)} free in {folder}"
    if needed > free:
        raise UserError(f"{text}; free {_gigabytes(needed - free)} or choose another disk")
    return text


def _reason(error: BaseException | None, path: Path) -> str | None:
    while error is not None and not isinstance(error, UserError):
        if isinstance(error, OSError) and error.errno in _REASONS:
            return _REASONS[error.errno]
        for text, number in _TEXTS.items():
            if text in str(error):
                return _REASONS[number]
        if type(error) is RuntimeError and any(text in str(error) for text in _OF_TORCH) and _is_full(path):
            return _REASONS[errno.ENOSPC]
        error = error.__cause__ or error.__context__
    return None


def _is_full(path: Path) -> bool:
    for folder in path.absolute().parents:
        with suppress(FileNotFoundError):
            return shutil.disk_usage(folder).free < _FULL
    return False


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
