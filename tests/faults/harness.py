"""What the campaigns share: which cases run when, what must not run, memory that is bounded."""

import re
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

from modeling_aligned_llava.errors import UserError


LARGEST = 8 * 2**30  # bytes of address space
Result = TypeVar("Result")


def in_campaign(cases: Iterable[Any]) -> list[Any]:
    """These values, or tuples of values, as cases that run in `make test-all` alone."""
    marks = (pytest.mark.slow, pytest.mark.campaign)
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks) for case in cases]


def unless_refused(action: Callable[[], Result], name: str) -> Result | None:
    """What `action` returns; None if it is refused in one line that names what is wrong."""
    try:
        return action()
    except UserError as error:
        assert name in str(error) and "\n" not in str(error), error
        return None


@contextmanager
def nothing_runs(path: Path) -> Iterator[None]:
    """`path`, which appears only if something runs that must not, does not appear in the block."""
    assert not path.exists()
    yield
    assert not path.exists(), "something has run"


@contextmanager
def bounded_memory(mib: int) -> Iterator[None]:
    """Raise an AssertionError if this process's resident memory grew by `mib` at any moment of the block."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here on
    before = _peak_mib()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    # What wants far too much gets an error here, instead of an end by the system.
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + LARGEST, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    grown = _peak_mib() - before
    assert grown < mib, f"took {grown} MiB"


def _peak_mib() -> int:
    (size,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(size) // 1024
