"""File systems of a few kilobytes or megabytes, for full and read-only disks. They need root."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class NoMount(Exception):
    """This machine does not let us mount."""


@contextmanager
def tmpfs(folder: Path, size: int) -> Iterator["Disk"]:
    """A file system of `size` bytes at `folder`, gone after the block.

    Raises:
        NoMount: with the reason.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder)
    try:
        yield Disk(folder)
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S603, S607


class Disk:
    """A mounted file system."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def resize(self, size: int) -> None:
        """Make room."""
        _mount("-o", f"remount,size={size}", self.folder)

    @contextmanager
    def full(self, left: int = 0) -> Iterator[None]:
        """Inside the block at most `left` bytes are free."""
        ballast = self.folder / ".ballast"
        free = os.statvfs(self.folder).f_bavail * os.statvfs(self.folder).f_frsize
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(free - left, 1))
        try:
            yield
        finally:
            ballast.unlink()

    @contextmanager
    def read_only(self) -> Iterator[None]:
        """Inside the block nothing can be written."""
        _mount("-o", "remount,ro", self.folder)
        try:
            yield
        finally:
            _mount("-o", "remount,rw", self.folder)


def _mount(*words: object) -> None:
    try:
        done = subprocess.run(["mount", *map(str, words)], capture_output=True, text=True)  # noqa: S603, S607
    except FileNotFoundError as error:
        raise NoMount("there is no program `mount`") from error
    if done.returncode:
        raise NoMount(done.stderr.strip() or f"mount ended with {done.returncode}")
