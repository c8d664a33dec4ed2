"""What counts as growth: a slope whose interval is above the allowance, not noise and not a warm-up."""

import os
import random

import psutil
import pytest

from tests.faults.soak import EVERY, Watch, watching


def watch_of(column):
    """A watch that has seen these measurements; `column(n)` is (MB, files, threads)."""
    watch = Watch(psutil.Process())
    watch.rows = [(n * EVERY, *column(n)) for n in range(600)]
    return watch


def test_noise_and_a_warm_up_are_no_growth():
    rng = random.Random(0)
    found = watch_of(lambda n: (800 + rng.gauss(0, 5) - 300 * (n < 100), 20, 7 + n % 2)).growth()
    low, middle, high = found["memory_mb"]["growth"]
    assert low < middle < high and abs(middle) < 3 and found["open_files"]["growth"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("column", "said"),
    [
        (lambda n: (800 + n / 10, 20, 7), "memory_mb grows by 4"),
        (lambda n: (800, 20 + n // 100, 7), "open_files grows by"),
        (lambda n: (800, 20, 7 + n // 200), "threads grows by"),
    ],
)
def test_a_leak_is_growth(column, said):
    with pytest.raises(AssertionError, match=said):
        watch_of(column).growth()


def test_open_files_of_this_process_are_seen():
    with watching(psutil.Process()) as watch:
        while not watch.rows:
            pass
        read, write = os.pipe()
        seen = len(watch.rows)
        while len(watch.rows) < seen + 2:
            pass
        os.close(read)
        os.close(write)
    assert watch.rows[-1][2] == watch.rows[0][2] + 2
