"""A campaign: named cases, run one after another. Each is recorded when it ends: a stopped campaign goes on."""

import json
import shutil
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeling_aligned_llava.loading.build_once import replacing


@dataclass(frozen=True)
class Case:
    """One thing that goes wrong.

    `run(folder)` gets an empty folder of its own, and returns what it counted (whole numbers, summed over the
    campaign) and measured (anything else). It raises when the software did not do what it should; the error's text
    says what the failing input was.
    """

    name: str
    run: Callable[[Path], dict[str, Any]]


@dataclass(frozen=True)
class Campaign:
    """`cases(seed)` generates all cases; the same seed gives the same ones."""

    name: str
    cases: Callable[[int], Iterator[Case]]


def run_campaign(campaign: Campaign, seed: int, folder: Path) -> dict[str, Any]:
    """Run the cases that `folder` has no record of; a failed case keeps its folder.

    Returns:
        The number of cases, summed counts, measurements by case, failures and seconds, of earlier runs too.
    """
    done = {entry["case"]: entry for entry in recorded(campaign, seed, folder) if entry["failure"] is None}
    cases = list(campaign.cases(seed))
    for case in cases:
        if case.name in done:
            continue
        done[case.name] = _run_case(case, folder / campaign.name / case.name)
        with replacing(_record(campaign, seed, folder)) as unfinished:
            unfinished.write_text(json.dumps([*done.values()], indent=1), encoding="utf-8")
    return summary([done[case.name] for case in cases])


def recorded(campaign: Campaign, seed: int, folder: Path) -> list[dict[str, Any]]:
    """What `folder` has of the campaign: case, found, failure and seconds of each case that was run."""
    record = _record(campaign, seed, folder)
    return json.loads(record.read_text("utf-8")) if record.exists() else []


def _record(campaign: Campaign, seed: int, folder: Path) -> Path:
    return folder / f"{campaign.name}-{seed}.json"


def summary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, int] = {}
    measured: dict[str, dict[str, Any]] = {}
    for entry in entries:
        for name, value in entry["found"].items():
            if isinstance(value, int):
                counts[name] = counts.get(name, 0) + value
            else:
                measured.setdefault(entry["case"], {})[name] = value
    failures = [f"{entry['case']}: {entry['failure']}" for entry in entries if entry["failure"]]
    seconds = round(sum(entry["seconds"] for entry in entries), 1)
    return {"cases": len(entries), "failures": failures, "counts": counts, "measured": measured, "seconds": seconds}


def _run_case(case: Case, folder: Path) -> dict[str, Any]:
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    start = time.monotonic()
    found: dict[str, Any] = {}
    failure = None
    try:
        found = case.run(folder)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        (folder / "traceback.txt").write_text(traceback.format_exc(), encoding="utf-8")
    else:
        shutil.rmtree(folder)
    seconds = round(time.monotonic() - start, 2)
    return {"case": case.name, "found": found, "failure": failure, "seconds": seconds}
