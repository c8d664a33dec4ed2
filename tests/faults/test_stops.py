"""A small comparison whose phases are killed, stopped by signals, or run elsewhere.

The end must be that of a run that nothing disturbed.
"""

import os
import random
import re
import shutil
import signal
import subprocess
import time

import psutil
import pytest

from tests.faults.small_run import PHASES, SmallRun
from tests.together import catches, kill_all


KILLS = 5
MOST_SECONDS = 10.0  # from a signal to the end of everything

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(3600)]
phases = pytest.mark.parametrize("phase", PHASES, ids=str)


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole process group, as when the machine dies."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@phases
def test_a_killed_phase_ends_like_a_straight_one(phase, straight_run, tmp_path):
    """After the last kill, the run continues from a copy under another path with another home."""
    rng = random.Random(str(phase))
    run, kills = SmallRun(tmp_path), 0
    run.start_from(straight_run, phase)
    while kills < KILLS:
        process = run.start(phase)
        try:
            code = process.wait(timeout=rng.uniform(0, straight_run.seconds[phase]))
        except subprocess.TimeoutExpired:
            kills += 1
            # Every other kill takes the process alone, and leaves what it started to end by itself.
            kill_group(process) if kills % 2 else kill_all(process)
            continue
        assert code == 0, f"after {kills} kills: {run.said()[-1000:]}"
        assert not run.differences(phase, straight_run)
        shutil.rmtree(run.clone)
        run.start_from(straight_run, phase)
    moved = SmallRun(tmp_path / "another machine")
    shutil.move(run.clone, moved.clone)
    moved.finish(phase)
    assert not moved.differences(phase, straight_run)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("phase", PHASES[:-1], ids=str)
def test_a_signal_ends_everything_with_one_line(phase, number, straight_run, tmp_path):
    rng = random.Random(f"{phase} {number}")
    run = SmallRun(tmp_path)
    run.start_from(straight_run, phase)
    process = run.start(phase)
    try:
        code = process.wait(timeout=rng.random() * straight_run.seconds[phase])
        assert code == 0, run.said()[-1000:]  # it was faster than the straight run
    except subprocess.TimeoutExpired:
        handled, said_before = takes_sigterm(process), len(run.said())
        began = time.monotonic()
        process.send_signal(number)
        code = process.wait(timeout=60)
        assert time.monotonic() - began < MOST_SECONDS
        said = run.said()[said_before:]
        told = code != 0 and said.count("error: stopped by SIG") == 1 and "Traceback" not in said
        assert told or not (handled or said), f"{code}, {said}"
        working = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(run.clone)]
        assert not [process for process in working if process.status() != psutil.STATUS_ZOMBIE]
        for checkpoint in re.findall(r"continues from (\S+)", said):
            assert (run.clone / checkpoint / "trainer_state.json").exists(), said
    run.finish(phase)
    # The signal adds a line to a training's log, and the next one has the means over fewer steps.
    assert not [name for name in run.differences(phase, straight_run) if not name.endswith("/log.jsonl")]


def takes_sigterm(process: subprocess.Popen[str]) -> bool:
    """Whether the phase's first Python process handles SIGTERM, as it does but while Python itself starts or exits."""
    started = psutil.Process(process.pid)
    for running in [started, *started.children(recursive=True)]:
        if running.name().startswith("python"):
            return catches(running.pid, signal.SIGTERM)
    return False
