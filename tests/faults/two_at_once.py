"""Two runs at the same moment: in one folder the second waits or is refused; in two folders they share caches."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from tests.faults.campaign import Campaign, Case
from tests.faults.small_run import (
    PHASES,
    RUN,
    Phase,
    before,
    differences,
    finish,
    last_lines,
    output,
    start,
    straight_run,
)


ROUNDS = 20
REFUSED = "another evaluation is running"


def same_folder(phase: Phase, folder: Path) -> dict[str, Any]:
    """Start the phase twice: each ends well or is refused in one line, and the results are those of one run."""
    straight = straight_run(folder)
    clone, home = folder / "clone", folder / "home"
    before(phase, straight, clone)
    codes = [process.wait() for process in [start(phase, clone, home) for _ in range(2)]]
    refused = codes.count(1)
    assert sorted(codes) in ([0, 0], [0, 1]) and bool(refused) == (REFUSED in output(clone)), output(clone)
    assert not (found := differences(phase, clone, straight)), found
    finish(phase, clone, home)
    return {"pairs": 1, "refused": refused}


def shared_caches(number: int, folder: Path) -> dict[str, Any]:
    """Two methods start stage 1 together, in folders of their own, with one bare home: both assemble and train."""
    clone, home = folder / "clone", folder / "home"
    before(PHASES[1], straight_run(folder), clone)
    runs = [_first_steps(method) for method in ("baseline", "norm")]
    codes = [process.wait() for process in [start(run, clone, home) for run in runs]]
    assert codes == [0, 0], f"round {number}: {codes}, {last_lines(clone)}"
    trained = [load_file(clone / RUN / run.made[0] / "model.safetensors") for run in runs]
    assert trained[0].keys() < trained[1].keys(), f"round {number}: the norm is missing"
    shutil.rmtree(home)
    return {"rounds": 1}


def _first_steps(method: str) -> Phase:
    root = RUN / method
    command = f"bash train/run.sh --backbone tinyworld --method {method} --stage stage1 --output-root {root}"
    command += f" --data {RUN}/data -- --max_steps 2 --save_steps 2"
    return Phase(method, tuple(command.split()), (f"{method}/checkpoints/{method}/stage1",))


def cases(seed: int) -> Iterator[Case]:
    for phase in PHASES:
        yield Case(phase.name, partial(same_folder, phase))
    for number in range(ROUNDS):
        yield Case(f"round-{number}", partial(shared_caches, number))


CAMPAIGN = Campaign("two_at_once", cases)
