"""The process of a step: what it prints, why it failed, and that nothing outlives a step. The children are shells."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from eval.run import processes
from eval.run.processes import run_logged
from modeling_aligned_llava.errors import UserError
from tests import REPOSITORY


SLEEPERS = "sleep 60 & echo $! $$ > {}; wait"
SLEEPER = "echo $$ > {}; exec sleep 60"
RUN = """
import sys
from functools import partial
from pathlib import Path
from eval.run.processes import run_logged
from eval.run.schedule import Step, run_steps
from modeling_aligned_llava.errors import run_main

def main():
    command = ["bash", "-c", sys.argv[1]]
    run_steps([Step("a", partial(run_logged, command, Path(sys.argv[2])), 1)], [None, None], print)

run_main(main)
"""


def all_end(pids, seconds):
    """Whether these processes end in this time."""
    deadline = time.monotonic() + seconds
    while alive := [pid for pid in pids.split() if Path(f"/proc/{pid}").exists()]:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return not alive


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo error: a; echo Traceback; echo '  more'; exit 1", "a"),
        ("echo torch.OutOfMemoryError: CUDA; echo; echo shutting down; exit 1", "torch.OutOfMemoryError: CUDA"),
        ("echo x; echo last words; echo; exit 1", "last words"),
        ("exit 2", "exit status 2"),
        ("echo x; kill -9 $$", "killed by signal 9"),
        ("echo x; exit 137", "killed by signal 9"),
    ],
)
def test_why_a_command_failed(tmp_path, script, reason):
    with pytest.raises(UserError, match=rf"^{re.escape(reason)}; see .*log$"):
        run_logged(["bash", "-c", script], tmp_path / "log")


def test_lines_are_logged_and_watched_where_colours_are_forced_too(tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code = "from rich.console import Console; print(Console().is_terminal)\nprint('ä')"
    seen = []
    run_logged([sys.executable, "-c", code], tmp_path / "log", seen.append)
    assert seen == ["False", "ä"]
    assert (tmp_path / "log").read_text(encoding="utf-8") == "False\nä\n"


def test_a_step_that_ends_early_stops_the_whole_group_of_its_process(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.2)
    stubborn = f"trap '' TERM; sleep 60 & echo $! $$ > {tmp_path / 'pids'}; echo ready; wait; sleep 60"

    def stop(line):
        raise UserError(line)

    with pytest.raises(UserError, match="ready"):
        run_logged(["bash", "-c", stubborn], tmp_path / "log", stop)
    assert all_end((tmp_path / "pids").read_text(), 5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "script"), [(signal.SIGINT, SLEEPERS), (signal.SIGTERM, SLEEPERS), (signal.SIGKILL, SLEEPER)]
)
def test_a_signal_ends_all_processes_and_says_so(tmp_path, number, script):
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", RUN, script.format(pids), str(tmp_path / "log")]
    process = subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, process_group=0)  # noqa: S603
    while not (pids.exists() and pids.read_text().endswith("\n")):
        assert process.poll() is None
        time.sleep(0.05)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # as a terminal does
    else:
        process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    if number != signal.SIGKILL:
        said = r"stopping; .*\nerror: stopped by SIG.*\n"
        assert process.returncode == 128 + number and re.fullmatch(said, errors), errors
    assert all_end(pids.read_text(), 20)
