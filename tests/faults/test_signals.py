"""SIGTERM and Ctrl-C at random moments of a small comparison: one line, the end in time, and the run continues."""

import random
import re
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.faults.small_run import PHASES, SmallRun
from tests.together import catches


MOST_SECONDS = 10.0  # from a signal to the end of everything

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
@pytest.mark.parametrize("phase", PHASES[:-1], ids=str)
def test_everything_ends_with_one_line_and_continues(phase, number, half, straight_run, tmp_path):
    rng = random.Random(f"{phase} {number} {half}")
    straight, run = straight_run.run, SmallRun(tmp_path)
    run.start_from(straight, phase)
    process = run.start(phase)
    try:
        code = process.wait(timeout=(half + rng.random()) / 2 * straight_run.seconds[phase])
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
        assert code or not run.differences(phase, straight)
        assert not working_in(run.clone)
        for checkpoint in re.findall(r"continues from (\S+)", said):
            assert (run.clone / checkpoint / "trainer_state.json").exists(), said
    run.finish(phase)
    # The signal adds a line to a training's log, and the next one has the means over fewer steps.
    assert not [name for name in run.differences(phase, straight) if not name.endswith("/log.jsonl")]


def takes_sigterm(process: subprocess.Popen[str]) -> bool:
    """Whether the phase's first Python process handles SIGTERM, as it does but while Python itself starts or exits."""
    started = psutil.Process(process.pid)
    for each in [started, *started.children(recursive=True)]:
        if each.name().startswith("python"):
            return catches(each.pid, signal.SIGTERM)
    return False


def working_in(clone: Path) -> list[list[str]]:
    """Commands that still run there."""
    found = psutil.process_iter(["cwd", "cmdline", "status"])
    alive = [each.info for each in found if each.info["status"] != psutil.STATUS_ZOMBIE]
    return [info["cmdline"] for info in alive if info["cwd"] == str(clone)]
