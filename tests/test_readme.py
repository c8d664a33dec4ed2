"""Every command of the README is executed, in order, as a newcomer would type it, then those of guides on tinyworld.

Training commands take ten steps here, and the study ten images; `bash eval/run_all.sh`, the first, runs in full.
HF_HUB_OFFLINE is set: no command may connect to anything but this machine, nor to the Hub, which is at a port of it.
"""

import os
import re
import subprocess
import sys

import pytest

from tests import REPOSITORY, sockets
from tests.pages import blocks


README = REPOSITORY / "README.md"
GUIDES = ("index", "your_model", "train", "evaluation", "diagnostics", "loading")
TESTS = "make test"  # what runs this file; running it here would never end
NOT_HERE = "path/to"  # a placeholder: such a block is parsed, not run
SHORT = {"train/run.sh": " -- --max_steps 10", "-m train.sft": " --max_steps 10", "study": " --limit 10"}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REPOSITORY / ".venv/installed").exists(), reason="the commands use .venv (make install)"),
]


@pytest.fixture
def offline(tmp_path):
    """Environment of commands that may not connect; fails the test if one tried."""
    sockets.guard(tmp_path)
    hub = {"HF_HUB_OFFLINE": "1", "HF_ENDPOINT": f"http://127.0.0.1:{sockets.DISCARD}"}
    yield {**os.environ, **hub, "PYTHONPATH": str(tmp_path)}
    assert sockets.attempts(tmp_path) == []


def test_the_guard_guards(tmp_path):
    sockets.guard(tmp_path)
    code = f"import socket; socket.create_connection(('127.0.0.1', {sockets.DISCARD}))"
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    assert subprocess.run([sys.executable, "-c", code], env=env).returncode == 1  # noqa: S603
    assert len(sockets.attempts(tmp_path)) == 1


def commands() -> list[str]:
    """Those of the README, then those of the guides on what its first command has made."""
    guides = (block for name in GUIDES for block in blocks(REPOSITORY / f"docs/{name}.md", "bash", indent=""))
    return [*blocks(README, "bash"), *(block for block in guides if "tinyworld" in block)]


@pytest.mark.parametrize("block", commands(), ids=lambda block: block.splitlines()[0][:50])
def test_command(block, offline):
    assert subprocess.run(["bash", "-n"], input=block, text=True).returncode == 0  # noqa: S607
    if NOT_HERE in block or block.strip() == TESTS:
        return
    assembled = re.search(r"--out (\S+)", block)
    if assembled and (REPOSITORY / assembled[1]).exists():
        pytest.skip(f"{assembled[1]} is there from an earlier run")
    for command, ending in SHORT.items():
        if command in block:
            block = block.rstrip() + ending
    ended = subprocess.run(["bash", "-e"], input=block, text=True, cwd=REPOSITORY, env=offline, capture_output=True)  # noqa: S607
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"


def test_loading_as_the_readme_says():
    checkpoint = REPOSITORY / "results/tinyworld/checkpoints/baseline/stage2"
    (load,) = blocks(README, "python")
    code = f"path = {str(checkpoint)!r}\n{load}\nprint(type(model).__name__)"
    python = REPOSITORY / ".venv/bin/python"
    ended = subprocess.run([python, "-c", code], text=True, capture_output=True)  # noqa: S603
    assert ended.stdout.strip() == "AlignedLlavaForConditionalGeneration", ended.stderr[-3000:]
