"""SIGKILL at random moments of every phase of a small comparison, and signals that must end it in time."""

import json
import math
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import psutil

from tests.faults.campaign import Campaign, Case
from tests.faults.small_run import (
    PHASES,
    RUN,
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
from tests.together import catches, kill_all


KILLS = 5  # a phase
MOST_SECONDS = 10.0  # from a signal to the end of everything
MEANS = ("loss", "entropy", "mean_token_accuracy")  # of a line of the training's log


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


def ended_by(number: signal.Signals, half: int, phase: Phase, seed: int, folder: Path) -> dict[str, Any]:
    """Send the signal at a random moment of the phase's first (0) or second (1) half.

    Everything ends in time with one line, which names a checkpoint that is there; the run continues from it.
    """
    straight = straight_run(folder)
    clone, home, rng = folder / "clone", folder / "home", random.Random(f"{number} {half} {phase.name} {seed}")
    before(phase, straight, clone)
    moment = (half + rng.random()) / 2 * seconds_of(phase, straight)
    process = start(phase, clone, home)
    counts = {"signals": 0, "signals while Python starts or exits": 0, "checkpoints named": 0}
    seconds, said = 0.0, "it had ended before"
    try:
        assert process.wait(timeout=moment) == 0, last_lines(clone)
    except subprocess.TimeoutExpired:
        handled = _takes_sigterm(process)
        began, before_signal = time.monotonic(), len(output(clone))
        process.send_signal(number)
        with no_orphans(clone):
            code = process.wait(timeout=60)
        seconds = time.monotonic() - began
        said = output(clone)[before_signal:]
        told = code != 0 and said.count("error: stopped by SIG") == 1 and "Traceback" not in said
        assert told or not (handled or said), f"{number.name} at {moment:.1f} s: {code}, {said}"
        assert code or not (found := differences(phase, clone, straight)), f"{number.name} at {moment:.1f} s: {found}"
        assert seconds < MOST_SECONDS, f"{number.name} at {moment:.1f} s took {seconds:.1f} s: {said}"
        for checkpoint in re.findall(r"continues from (\S+)", said):
            assert (clone / checkpoint / "trainer_state.json").exists(), said
            counts["checkpoints named"] += 1
        counts |= {"signals": 1, "signals while Python starts or exits": int(not handled)}
    finish(phase, clone, home)
    found = [name for name in differences(phase, clone, straight) if not _of_one_more_line(name, clone, straight)]
    assert not found, f"{number.name} at {moment:.1f} s: {found}"
    return {**counts, "moment": moment, "seconds": seconds, "said": said.strip().rpartition("\n")[2]}


def _takes_sigterm(process: subprocess.Popen[str]) -> bool:
    """Whether the phase's first Python process handles SIGTERM, as it does but while Python itself starts or exits."""
    started = psutil.Process(process.pid)
    for each in [started, *started.children(recursive=True)]:
        if each.name().startswith("python"):
            return catches(each.pid, signal.SIGTERM)
    return False


def _of_one_more_line(name: str, clone: Path, straight: Path) -> bool:
    """Whether this is a log of training that differs only by what a signal makes it log."""
    if not name.endswith("/log.jsonl"):
        return False
    found, expected = ((root / RUN / name).read_text("utf-8").splitlines() for root in (clone, straight))
    return same_log([json.loads(line) for line in found], [json.loads(line) for line in expected])


def same_log(found: list[dict[str, float]], expected: list[dict[str, float]]) -> bool:
    """Whether the logs are equal when the one line that a signal added is averaged into the next one.

    The trainer logs means over the steps since the line before.
    """
    steps = {line["step"] for line in expected}
    added = [row for row, line in enumerate(found) if line["step"] not in steps]
    if len(added) == 1 and (row := added[0]) + 1 < len(found):
        first, second = found[row : row + 2]
        start = found[row - 1]["step"] if row else 0
        share = (first["step"] - start) / (second["step"] - start)
        means = {key: share * first[key] + (1 - share) * second[key] for key in MEANS}
        wanted = next(line for line in expected if line["step"] == second["step"])
        if any(not math.isclose(means[key], wanted[key], rel_tol=1e-5) for key in MEANS):
            return False
        found = [*found[:row], second | {key: wanted[key] for key in MEANS}, *found[row + 2 :]]
    return found == expected


def cases(seed: int) -> Iterator[Case]:
    for phase in PHASES:
        yield Case(phase.name, partial(killed_again_and_again, phase, seed))
    for phase in PHASES[:-1]:
        for number, half in product((signal.SIGTERM, signal.SIGINT), (0, 1)):
            yield Case(f"{phase.name}-{number.name}-{half}", partial(ended_by, number, half, phase, seed))


CAMPAIGN = Campaign("kills", cases)
