"""Words for the scripts are words, whatever they contain. Python is a stand-in that writes down its arguments."""

import os
import shutil
import subprocess

import pytest

from tests import REPOSITORY
from tests.faults.traps import nothing_runs


RAN = "ran"  # in the folder of the commands
HOSTILE = [f"$(touch {RAN})", f"`touch {RAN}`", f"a; touch {RAN} #", f"a' && touch {RAN} '", f'a" | touch {RAN} "']
HARMLESS = [f"a[$(touch {RAN})]", "a  b", "*", "~", "a\nb", "é"]  # if they are quoted

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.fixture
def clone(tmp_path):
    """The scripts of this repository."""
    folder = tmp_path / "clone"
    for name in ("eval", "train", "configuration"):
        shutil.copytree(REPOSITORY / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "Makefile", folder)
    python = folder / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/bash\nprintf "%s\\0" "$@" >>"$ARGUMENTS"\n')
    python.chmod(0o755)
    for name in ("pyproject.toml", "constraints.txt", ".venv/installed"):  # in this order, or make would install
        (folder / name).touch()
    return folder


def commands(word: str, folder: str) -> list[list[str]]:
    """Commands of our scripts with a word from elsewhere in each place that takes one."""
    evaluate, train = ["bash", "eval/run_all.sh"], ["bash", "train/run.sh", "--backbone", "tinyworld"]
    both = [*train, "--method", "norm"]
    return [
        *([*evaluate, option, word] for option in ("--run", "--methods", "--seeds", "--backbone", "--baseline")),
        [*evaluate, "--models", f"one={folder}", "--data", folder, "--run", "x", "--tasks", word],
        [*evaluate, "--limit", word, "--jobs", word],
        *([*both, option, word] for option in ("--seed", "--output-root", "--data-stage1", "--vision-tower")),
        [*both, "--output-root", folder, "--", "--run_name", word],
        [*train, "--method", word],
        ["bash", "train/run.sh", "--backbone", word, "--method", "norm"],
        ["make", "tables", f"RUN={word}".replace("$", "$$")],
    ]


@pytest.mark.parametrize("word", [*HOSTILE, *HARMLESS])
def test_a_word_arrives_as_it_is(word, clone, tmp_path):
    data, given = tmp_path / "data" / word.replace("/", "_"), tmp_path / "arguments"
    data.mkdir(parents=True)
    (data / "config.json").touch()
    environment = os.environ | {"ARGUMENTS": str(given)}
    for command in commands(word, str(data)):
        given.unlink(missing_ok=True)
        with nothing_runs(clone / RAN):
            done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True)  # noqa: S603
        words = given.read_text().split("\0") if given.exists() else []
        assert done.returncode or any(word in each for each in words), f"{command} lost the word: {words}"
