"""Folders on file systems of their own, and a long path of signs that mean something to shells and globs."""

import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY
from tests.faults.conftest import METHOD
from tests.faults.disks import MB


WORDS = ["Größe über alles", "it's [a] {test}", "$(touch oops)", "100 % & more;", "äöü ß é 文字", "*?"]

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


def train(arguments: list[str], places: dict[str, Path]) -> None:
    """Run a stage as a program of its own, with other folders in its environment."""
    environment = os.environ | {name: str(path) for name, path in places.items()} | {"PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "train.sft", *arguments]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr[-1500:]


def test_home_temporary_files_cache_and_results_on_four_file_systems(mount, stage2, assert_undisturbed):
    home, temporary, cache, results = (mount(name, 64 * MB).folder for name in ("home", "tmp", "cache", "results"))
    places = {"HOME": home, "HF_HOME": home / "hf", "TMPDIR": temporary}
    train(stage2(results, data_cache=cache), places)
    assert_undisturbed(results / METHOD / "stage2")


def test_a_path_of_200_characters(checkpoint, tiny_data, stage2, assert_undisturbed, tmp_path):
    rng = random.Random(0)
    deep = tmp_path
    while len(str(deep.relative_to(tmp_path))) < 200:
        deep = deep / " ".join(rng.sample(WORDS, 2))
    shutil.copytree(tiny_data, deep / "data")
    shutil.copytree(checkpoint, deep / "checkpoint")
    given = {"data_path": deep / "data/stage2.json", "image_folder": deep / "data/images", "data_cache": deep / "rows"}
    train(stage2(deep, model_name_or_path=deep / "checkpoint", **given), {"HF_HOME": deep / "home"})
    assert_undisturbed(deep / METHOD / "stage2")
    assert not list(tmp_path.rglob("oops")) and not (REPOSITORY / "oops").exists()
