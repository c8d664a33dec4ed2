"""A full or read-only disk in one line: what could not be written, why, and what to do."""

import errno
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modeling_aligned_llava.errors import UserError


_REASONS = {
    errno.ENOSPC: "no space left on its disk; free some and start again",
    errno.EDQUOT: "no space left in its quota; free some and start again",
    errno.EROFS: "its file system is read-only; choose another folder",
}
_TEXTS = {"No space left on device": errno.ENOSPC, "Read-only file system": errno.EROFS}
_OF_TORCH = ("inline_container", "iostream error")  # torch.save does not say why it could not write
_FULL = 1 << 20  # bytes


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
