"""A block of work that must not take more than so much memory."""

import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil


LARGEST = 8 * 2**30  # bytes of address space


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
