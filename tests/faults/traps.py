"""A file that appears only if something runs that must not."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def nothing_runs(path: Path) -> Iterator[None]:
    """`path` must not appear in the block."""
    assert not path.exists()
    yield
    assert not path.exists(), "something has run"
