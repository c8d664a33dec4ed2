"""SIGKILL at random moments of every phase of a small comparison, each time of what is left of it.

The end must be that of a run that nothing stopped. After the last kill, the run continues from a copy under another
path with another home, as on a new machine.
"""

import os
import random
import shutil
import signal
import subprocess

import pytest

from tests.faults.small_run import PHASES, SmallRun
from tests.together import kill_all


KILLS = 5

pytestmark = [pytest.mark.slow, pytest.mark.campaign, pytest.mark.timeout(3600)]


def kill_group(process: subprocess.Popen[str]) -> None:
    """SIGKILL to the whole process group, as when the machine dies."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("phase", PHASES, ids=str)
def test_a_killed_phase_ends_like_a_straight_one(phase, straight_run, tmp_path):
    rng = random.Random(str(phase))
    straight, duration = straight_run.run, straight_run.seconds[phase]
    run = SmallRun(tmp_path)
    run.start_from(straight, phase)
    kills = 0
    while kills < KILLS:
        process = run.start(phase)
        try:
            code = process.wait(timeout=rng.uniform(0, duration))
        except subprocess.TimeoutExpired:
            kills += 1
            # Every other kill takes the process alone, and leaves what it started to end by itself.
            kill_group(process) if kills % 2 else kill_all(process)
            continue
        assert code == 0, f"after {kills} kills: {run.said()[-1000:]}"
        assert not run.differences(phase, straight)
        shutil.rmtree(run.clone)
        run.start_from(straight, phase)
    moved = SmallRun(tmp_path / "another machine")
    shutil.move(run.clone, moved.clone)
    moved.finish(phase)
    assert not moved.differences(phase, straight)
