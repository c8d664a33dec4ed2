"""SIGKILL at random moments of every phase of a small comparison, and signals that must end it in time."""

import random
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tests.faults.campaign import Campaign, Case
from tests.faults.small_run import (
    PHASES,
    Phase,
    before,
    differences,
    finish,
    kill_group,
    last_lines,
    no_orphans,
    output,
    seconds_of,
    start,
    straight_run,
)
from tests.together import kill_all


KILLS = 5  # a phase
MOST_SECONDS = 10.0  # from a signal to the end of everything


def killed_again_and_again(phase: Phase, seed: int, folder: Path) -> dict[str, Any]:
    """Kill the phase at random moments, each time of what is left of it; the end must be that of a straight run.

    Every other kill takes the process alone, and leaves what it started to end by itself. After the last one, the run
    continues from a copy under another path with another home, as on a new machine.
    """
    straight = straight_run(folder)
    clone, home, rng = folder / "clone", folder / "home", random.Random(f"{phase.name} {seed}")
    before(phase, straight, clone)
    began = time.monotonic()
    duration = seconds_of(phase, straight)
    kills = whole_runs = 0
    moments = []
    while kills < KILLS:
        moment = rng.uniform(0, duration)
        process = start(phase, clone, home)
        try:
            code = process.wait(timeout=moment)
        except subprocess.TimeoutExpired:
            kill_group(process) if kills % 2 else kill_all(process)
            kills += 1
            moments.append(round(moment, 2))
            continue
        assert code == 0, f"after kills at {moments} of {duration:.0f} s: {last_lines(clone)}"
        assert not (found := differences(phase, clone, straight)), f"after kills at {moments}: {found}"
        whole_runs += 1
        shutil.rmtree(clone)
        before(phase, straight, clone)
    moved = folder / "another machine" / "clone"
    shutil.copytree(clone, moved, symlinks=True)
    shutil.rmtree(clone)
    finish(phase, moved, folder / "another home")
    assert not (found := differences(phase, moved, straight)), f"after kills at {moments}: {found}"
    return {"kills": kills, "finished_runs": whole_runs + 1, "seconds": time.monotonic() - began, "moments": moments}


def ended_by(number: signal.Signals, phase: Phase, seed: int, folder: Path) -> dict[str, Any]:
    """Send the signal at a random moment: everything ends in time with one line, and the run continues from there."""
    straight = straight_run(folder)
    clone, home, rng = folder / "clone", folder / "home", random.Random(f"{number} {phase.name} {seed}")
    before(phase, straight, clone)
    moment = rng.uniform(0, seconds_of(phase, straight))
    process = start(phase, clone, home)
    try:
        assert process.wait(timeout=moment) == 0, last_lines(clone)
    except subprocess.TimeoutExpired:
        began, before_signal = time.monotonic(), len(output(clone))
        process.send_signal(number)
        with no_orphans(clone):
            code = process.wait(timeout=60)
        seconds = time.monotonic() - began
        said = output(clone)[before_signal:]
        assert code != 0 and _in_one_line(said), f"{number.name} at {moment:.1f} s: {code}, {said}"
        assert seconds < MOST_SECONDS, f"{number.name} at {moment:.1f} s took {seconds:.1f} s: {said}"
    else:
        seconds, said = 0.0, "it had ended before"
    finish(phase, clone, home)
    found = [name for name in differences(phase, clone, straight) if not name.endswith("/log.jsonl")]  # one line more
    assert not found, f"{number.name} at {moment:.1f} s: {found}"
    return {"signals": 1, "seconds": seconds, "said": said.strip().rpartition("\n")[2]}


def _in_one_line(said: str) -> bool:
    """Whether the end was told in one line (run.sh passes Ctrl-C on as SIGTERM).

    While Python still imports packages, it ends in its own way.
    """
    importing = not said or ("<frozen importlib" in said and said.endswith("KeyboardInterrupt\n"))
    return importing or (said.count("error: stopped by SIG") == 1 and "Traceback" not in said)


def cases(seed: int) -> Iterator[Case]:
    for phase in PHASES:
        yield Case(phase.name, partial(killed_again_and_again, phase, seed))
    for phase in PHASES[:-1]:
        for number in (signal.SIGTERM, signal.SIGINT):
            yield Case(f"{phase.name}-{number.name}", partial(ended_by, number, phase, seed))


CAMPAIGN = Campaign("kills", cases)
