"""The order of steps, and that one failure ends every process. The children are shells that sleep."""

import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from eval.suite import schedule
from eval.suite.schedule import Children, Step, path_lengths, run_steps
from eval.suite.training import Training, failure
from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False


def test_the_longest_path_goes_first_and_nothing_before_what_it_needs():
    began = []
    steps = [
        Step("alone", lambda place: began.append("alone"), 5),
        Step("b", lambda place: began.append("b"), 3, after=("a",)),
        Step("a", lambda place: began.append("a"), 4),
        Step("c", lambda place: began.append("c"), 1, after=("a", "alone")),
    ]
    assert path_lengths(steps) == {"alone": 6, "b": 3, "a": 7, "c": 1}
    run_steps(steps, [None], Children())
    assert began == ["a", "alone", "b", "c"]


def test_each_place_has_one_step_at_a_time_and_none_waits_without_need():
    both = threading.Barrier(2)
    seen = []

    def work(place):
        both.wait(timeout=10)  # two at once, or this breaks
        seen.append(place)

    run_steps([Step(str(number), work, 1) for number in range(4)], ["0", "1"], Children())
    assert sorted(seen) == ["0", "0", "1", "1"]


def test_steps_that_wait_for_each_other_are_refused():
    nothing = print
    with pytest.raises(ValueError, match="waits for itself"):
        path_lengths([Step("a", nothing, 1, ("b",)), Step("b", nothing, 1, ("a",))])
    with pytest.raises(ValueError, match="not a step"):
        path_lengths([Step("a", nothing, 1, ("b",))])


def test_a_failed_training_ends_the_groups_of_all_others(tmp_path, monkeypatch):
    monkeypatch.setattr(schedule, "GRACE", 0.2)
    children = Children()
    pids = tmp_path / "pids"
    sleeper = ("bash", "-c", f"sleep 60 & echo $! $$ > {pids}; trap '' TERM; wait; sleep 60")
    broken = ("bash", "-c", f"until [ -s {pids} ]; do sleep 0.01; done; echo 'error: no such thing'; exit 3")

    def step(name, command):
        training = Training(name, "stage1", command, tmp_path / f"{name}.log")
        return Step(name, lambda place: training.run(children, {}, lambda *words: None), 1)

    later = Step("later", lambda place: pytest.fail("begun after the failure"), 0)
    start = time.monotonic()
    with pytest.raises(UserError, match=r"training bad stage1 failed: no such thing; see .*bad\.log"):
        run_steps([step("good", sleeper), step("bad", broken), later], [None, None], children)
    assert time.monotonic() - start < 5
    assert not any(alive(pid) for pid in map(int, pids.read_text().split()))


def test_a_training_moves_the_table_by_what_it_prints(tmp_path):
    shown = []
    command = ("printf", "hello\\nnorm stage2: step 30/60, loss 0.7, 20 s left\\nno step\\n")
    training = Training("norm", "stage2", command, tmp_path / "log")
    training.run(Children(), {}, lambda *words: shown.append(words))
    assert shown == [(pytest.approx(0.65), "stage2", "20 s left")]
    assert (tmp_path / "log").read_text().endswith("no step\n")


def test_a_training_prints_lines_where_colours_are_forced(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = "from rich.console import Console; print(Console().is_terminal)"
    Training("norm", "stage2", (sys.executable, "-c", code), tmp_path / "log").run(Children(), {}, lambda *words: None)
    assert (tmp_path / "log").read_text() == "False\n"


def test_why_a_training_failed():
    assert failure(["error: a", "Traceback", "  more"], 1) == "a"
    assert failure(["x", "torch.OutOfMemoryError: CUDA", "", "shutting down"], 1) == "torch.OutOfMemoryError: CUDA"
    assert failure(["x", "last words", ""], 1) == "last words"
    assert failure([], 2) == "exit status 2"
    assert failure(["x"], -9) == failure(["x"], 137) == "killed by signal 9"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_children_and_is_one_line(tmp_path, number):
    pids = tmp_path / "pids"
    code = (
        "from eval.suite.schedule import Children, Step, run_steps\n"
        "from modeling_aligned_llava.errors import run_main\n"
        "children = Children()\n"
        f"command = ['bash', '-c', 'sleep 60 & echo $! $$ > {pids}; wait']\n"
        "work = lambda place: children.wait(children.start(command))\n"
        "run_main(lambda: run_steps([Step('a', work, 1)], [None], children))\n"
    )
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
    )
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)
    assert process.returncode == 128 + number and re.fullmatch(r"error: stopped by SIG.*\n", errors)
    assert not any(alive(pid) for pid in map(int, pids.read_text().split()))
