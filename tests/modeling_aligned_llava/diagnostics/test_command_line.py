"""`--help` answers without the libraries that measure; they are imported by the command that runs."""

import subprocess
import sys

import pytest

from modeling_aligned_llava.diagnostics.command_line import COMMANDS
from tests import REPOSITORY


HEAVY = {"torch", "transformers", "matplotlib", "numpy", "pyarrow", "datasets"}


@pytest.mark.parametrize("command", [[], *([command.__name__] for command in COMMANDS)], ids=" ".join)
@pytest.mark.parametrize("program", ["modeling_aligned_llava.diagnostics", "eval.diagnostics"])
def test_help_imports_nothing_that_takes_seconds(program, command):
    words = [sys.executable, "-X", "importtime", "-m", program, *command, "--help"]
    shown = subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, check=True)  # noqa: S603
    imported = {line.rpartition("|")[2].strip() for line in shown.stderr.splitlines()}
    assert shown.stdout.startswith("usage:") and "modeling_aligned_llava.errors" in imported
    assert HEAVY & imported == set()
