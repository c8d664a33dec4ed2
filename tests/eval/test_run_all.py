"""`eval/run_all.sh` on existing checkpoints, killed and started again."""

import shutil
import subprocess
import time

import pytest

from modeling_aligned_llava.loading.files import lock_for
from tests import REPOSITORY


RUN = "test-run-all"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REPOSITORY / ".venv/installed").exists(), reason="run_all.sh would install .venv first"),
]


@pytest.fixture
def folder():
    folder = REPOSITORY / "results" / RUN
    shutil.rmtree(folder, ignore_errors=True)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def start(tiny_llava, mirror_root):
    """`start(log)` -> the command, started; it writes to this file."""
    command = ["bash", "eval/run_all.sh", "--run", RUN, "--data", mirror_root, "--models", f"baseline={tiny_llava}"]

    def start(log):
        with log.open("w") as output:
            return subprocess.Popen(command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT)  # noqa: S603

    return start


def wait_until(condition, process, log):
    while not condition():
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)


def test_killed_and_started_again_it_ends_with_the_table_and_then_changes_nothing(folder, start, tmp_path):
    log = tmp_path / "log"
    first = start(log)
    wait_until((folder / "answers").exists, first, log)
    first.kill()
    first.wait()
    with lock_for(folder / "logs"):  # as another run would
        second = start(log)
        wait_until(lambda: "An earlier run still works" in log.read_text(), second, log)
    assert second.wait() == 0, log.read_text()
    output = log.read_text()
    assert "Table 4" in output and "tables, with the paper's" in output and "failed" not in output
    results = [folder / name for name in ("scores.json", "run.json", "figures/table4.svg", "report.html")]
    results += (folder / "tables").iterdir()
    assert {path.name for path in results} >= {"table4.md", "table4.tex", "table4.csv"}
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results}
    assert start(log).wait() == 0, log.read_text()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results} == before
