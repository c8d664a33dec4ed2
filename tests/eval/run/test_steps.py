"""Steps: their order, the devices they share out, and what a failure stops."""

import time
from functools import partial
from graphlib import CycleError

import pytest

from eval.run import schedule as module
from eval.run.processes import run_logged
from eval.run.schedule import Step, find_devices, path_lengths, run_steps
from modeling_aligned_llava.errors import UserError
from tests.one_line import one_line


TWO = [None, None]


def run(steps, devices):
    """Whether all succeeded, and the failures."""
    failures = {}
    return run_steps(steps, devices, failures.__setitem__), failures


def test_a_gpu_that_is_not_there_is_one_line(monkeypatch):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: False)
    with one_line("--device cuda: torch sees no GPU"):
        find_devices(None, "cuda")


@pytest.mark.parametrize(
    ("jobs", "visible", "expected"),
    [(4, "4,GPU-8f2e", ["4", "GPU-8f2e", "4", "GPU-8f2e"]), (1, None, ["0"]), (None, None, ["0", "1"])],
)
def test_commands_of_steps_share_the_gpus(jobs, visible, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    devices = find_devices(jobs, "auto")
    assert devices == expected and find_devices(jobs, "cpu") == [""] * (jobs or 2)
    # Each waits for the others, so that every device is taken once.
    meet = f"echo x >> here; while [ $(wc -l < here) -lt {len(expected)} ]; do sleep 0.01; done"
    command = ["bash", "-c", f"cd {tmp_path}; {meet}; echo $CUDA_VISIBLE_DEVICES"]
    seen = []
    work = [partial(run_logged, command, tmp_path / f"{number}.log", seen.append) for number in range(len(expected))]
    assert run([Step(str(number), one, 1) for number, one in enumerate(work)], devices) == (True, {})
    assert sorted(seen) == sorted(expected)


def test_the_longest_path_goes_first_and_nothing_before_what_it_needs():
    begun = []
    steps = [
        Step("alone", partial(begun.append, "alone"), 5),
        Step("b", partial(begun.append, "b"), 3, after=("a",)),
        Step("a", partial(begun.append, "a"), 4),
        Step("c", partial(begun.append, "c"), 1, after=("a", "alone")),
    ]
    assert path_lengths(steps) == {"alone": 6, "b": 3, "a": 7, "c": 1}
    assert run(steps, [None]) == (True, {}) and begun == ["a", "alone", "b", "c"]


def test_steps_that_wait_for_each_other_are_refused():
    with pytest.raises(CycleError):
        path_lengths([Step("a", print, 1, ("b",)), Step("b", print, 1, ("a",))])


def test_a_failure_stops_what_depends_on_it_and_nothing_else():
    def broken():
        raise UserError("no such thing")

    done = []
    steps = [
        Step("broken", broken, 1),
        Step("next", print, 1, after=("broken",)),
        Step("last", print, 1, after=("next",)),
        Step("wrong", lambda: {}["key"], 1),
        Step("other", partial(done.append, "other"), 0.1),
    ]
    ok, failures = run(steps, TWO)
    assert not ok and done == ["other"]
    assert failures == {
        "broken": "no such thing",
        "wrong": "KeyError: 'key'",
        "next": "not run, because broken failed",
        "last": "not run, because next failed",
    }


def test_an_error_while_they_run_cancels_the_others(tmp_path):
    ticking = ["bash", "-c", f"trap 'touch {tmp_path}/ended; exit' TERM; while true; do echo tick; sleep 0.05; done"]
    ticked = []

    def broken():
        while not ticked:
            time.sleep(0.01)
        raise UserError("a fault")

    def fail(name, reason):
        raise UserError(f"enough: {name}, {reason}")

    steps = [Step("endless", partial(run_logged, ticking, tmp_path / "log", ticked.append), 1), Step("b", broken, 1)]
    with pytest.raises(UserError, match="enough: b, a fault"):
        run_steps(steps, TWO, fail)
    assert (tmp_path / "ended").exists()
