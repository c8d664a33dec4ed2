"""File systems of a few kilobytes or megabytes, for full and read-only disks. They need root."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest


KB, MB = 1 << 10, 1 << 20


class Disk:
    """A file system in memory."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder = folder
        folder.mkdir()
        self._mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs")

    def resize(self, size: int) -> None:
        self._mount("-o", f"remount,size={size}")

    @contextmanager
    def full(self, left: int) -> Iterator[None]:
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
        self._mount("-o", "remount,ro")
        try:
            yield
        finally:
            self._mount("-o", "remount,rw")

    def unmount(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=True)  # noqa: S603, S607

    def _mount(self, *words: str) -> None:
        try:
            done = subprocess.run(["mount", *words, str(self.folder)], capture_output=True, text=True)  # noqa: S603, S607
        except FileNotFoundError:
            pytest.skip("there is no program `mount`")
        if done.returncode:
            pytest.skip(f"no mount: {done.stderr.strip()}")


@pytest.fixture
def mount(tmp_path) -> Iterator[Callable[[str, int], Disk]]:
    """`mount(name, size)` -> a file system of `size` bytes at `tmp_path/name`, gone after the test."""
    with ExitStack() as stack:

        def make(name: str, size: int) -> Disk:
            disk = Disk(tmp_path / name, size)
            stack.callback(disk.unmount)
            return disk

        yield make
