"""Programs in the terminals and locales that people have."""

import os
import subprocess
import sys

import pytest
from PIL import Image

from tests import REPOSITORY
from tests.modeling_aligned_llava.tiny_families import write_checkpoint


ENVIRONMENTS = [
    {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    {"PYTHONWARNINGS": "error", "TERM": "dumb", "NO_COLOR": "1"},
    {"FORCE_COLOR": "1", "COLUMNS": "40"},
]


@pytest.mark.slow
@pytest.mark.parametrize("environment", ENVIRONMENTS, ids=" ".join)
def test_a_profile_ends_with_its_verdict(environment, tmp_path):
    write_checkpoint("llava", tmp_path / "model")
    (tmp_path / "images").mkdir()
    Image.new("RGB", (30, 20), (9, 99, 200)).save(tmp_path / "images/a.png")
    command = [sys.executable, "-m", "eval.diagnostics", "profile", tmp_path / "model", "--images"]
    command.append(tmp_path / "images")
    done = subprocess.run(command, cwd=REPOSITORY, env=os.environ | environment, capture_output=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert b"Verdict: the visual tokens are" in done.stdout
