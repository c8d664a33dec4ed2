"""A long path of signs that mean something to shells and globs."""

import os
import random
import shutil
import subprocess
import sys

import pytest

from tests import REPOSITORY
from tests.faults.conftest import METHOD
from tests.train.stage_results import assert_same_weights


WORDS = ["Größe über alles", "it's [a] {test}", "$(touch oops)", "100 % & more;", "äöü ß é 文字", "*?"]

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


def test_a_path_of_200_characters(checkpoint, tiny_data, stage2, undisturbed, tmp_path):
    rng = random.Random(0)
    deep = tmp_path
    while len(str(deep.relative_to(tmp_path))) < 200:
        deep = deep / " ".join(rng.sample(WORDS, 2))
    shutil.copytree(tiny_data, deep / "data")
    shutil.copytree(checkpoint, deep / "checkpoint")
    given = {"data_path": deep / "data/stage2.json", "image_folder": deep / "data/images", "data_cache": deep / "rows"}
    command = [sys.executable, "-m", "train.sft", *stage2(deep, model_name_or_path=deep / "checkpoint", **given)]
    environment = os.environ | {"HF_HOME": str(deep / "home"), "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr[-1500:]
    assert_same_weights(deep / METHOD / "stage2", undisturbed)
    assert not list(tmp_path.rglob("oops")) and not (REPOSITORY / "oops").exists()
