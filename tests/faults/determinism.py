"""The same seed on the same machine: a second run gives the same weights and scores."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.clone import clone_repository
from tests.faults.campaign import Campaign, Case
from tests.faults.small_run import PHASES, differences, environment, finish, straight_run


RUN = "results/tinyworld"


def small_run(folder: Path) -> dict[str, Any]:
    """Every phase again, under another path and with another home."""
    straight, clone = straight_run(folder), folder / "a second clone"
    clone_repository(clone)
    for phase in PHASES:
        finish(phase, clone, folder / "a second home")
        assert not (found := differences(phase, clone, straight)), f"{phase.name}: {found}"
    return {"runs": 2}


def default_job(folder: Path) -> dict[str, Any]:
    """`bash eval/run_all.sh` twice, side by side, with a home each."""
    clones = [folder / name / "clone" for name in ("first", "second")]
    processes = []
    for clone in clones:
        clone_repository(clone)
        with clone.with_name("output.txt").open("w", encoding="utf-8") as output:
            processes.append(
                subprocess.Popen(
                    ["bash", "eval/run_all.sh"],  # noqa: S607
                    cwd=clone,
                    env=environment(clone.with_name("home")),
                    stdout=output,
                    stderr=output,
                )
            )
    codes = [process.wait() for process in processes]
    assert codes == [0, 0], codes
    first, second = (json.loads((clone / RUN / "run.json").read_text("utf-8")) for clone in clones)
    weights = {name: model["sha256"] for name, model in first["models"].items()}
    assert weights == {name: model["sha256"] for name, model in second["models"].items()}, "other weights"
    scores = [(clone / RUN / "scores.json").read_bytes() for clone in clones]
    assert scores[0] == scores[1], "other scores"
    averages = {
        row["method"]: row["score"]
        for row in json.loads(scores[0])
        if row["source"] == "measured" and row["benchmark"] == "avg"
    }
    return {"runs": 2, "averages": averages, "weights": weights}


def cases(seed: int) -> Iterator[Case]:
    yield Case("small-run", small_run)
    yield Case("default-job", default_job)


CAMPAIGN = Campaign("determinism", cases)
