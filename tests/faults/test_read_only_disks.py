"""A disk on which nothing can be written: one line says so, and nothing is changed."""

import json

import pytest

from modeling_aligned_llava.loading.build_once import build_once, exclusive_lock, replacing
from modeling_aligned_llava.loading.files import write_json
from tests.faults.disks import MB
from tests.faults.refusals import refused
from train.stage import run_stage


pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture
def folder(mount):
    """On a disk that was written before, and cannot be now: `scores.json` and a built folder `there`."""
    disk = mount("disk", 16 * MB)
    write_json(disk.folder / "scores.json", [1])
    build_once(disk.folder / "there", lambda unfinished: (unfinished / "x").touch())
    with disk.read_only():
        yield disk.folder


ATTEMPTS = {
    "results": lambda folder, stage2: write_json(folder / "scores.json", [2]),
    "a folder": lambda folder, stage2: build_once(folder / "new", lambda _: None),
    "a lock": lambda folder, stage2: exclusive_lock(folder / "scores.json", "busy").__enter__(),
    "a file": lambda folder, stage2: replacing(folder / "deep" / "file").__enter__(),
    "a stage": lambda folder, stage2: run_stage(stage2(folder)),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_writing_is_refused(attempt, stage2, folder):
    with refused("read-only", str(folder)):
        attempt(folder, stage2)
    assert json.loads((folder / "scores.json").read_text()) == [1]


def test_what_is_there_can_be_used(folder):
    assert not build_once(folder / "there", lambda _: None)
