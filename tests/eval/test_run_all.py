"""`eval/run_all.sh` on existing checkpoints, killed and started again."""

import shutil
import subprocess
import time

import pytest

from modeling_aligned_llava.loading.build_once import lock_for
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


def start(tiny_llava, mirror_root, log):
    command = ["bash", "eval/run_all.sh", "--run", RUN, "--data", mirror_root, "--models", f"baseline={tiny_llava}"]
    return subprocess.Popen(list(map(str, command)), cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT)  # noqa: S603


def test_killed_and_started_again_it_ends_with_the_table_and_then_changes_nothing(
    folder, tiny_llava, mirror_root, tmp_path
):
    with (tmp_path / "first.log").open("w") as log:
        first = start(tiny_llava, mirror_root, log)
        while not (folder / "answers").exists():
            time.sleep(0.1)
            assert first.poll() is None, (tmp_path / "first.log").read_text()
        first.kill()
        first.wait()
    with (tmp_path / "second.log").open("w") as log:
        with lock_for(folder / "logs"):  # as another run would
            second = start(tiny_llava, mirror_root, log)
            while "An earlier run still works" not in (tmp_path / "second.log").read_text():
                time.sleep(0.1)
                assert second.poll() is None, (tmp_path / "second.log").read_text()
        assert second.wait() == 0, (tmp_path / "second.log").read_text()
    output = (tmp_path / "second.log").read_text()
    assert "Table 4" in output and "tables, with the paper's" in output and "failed" not in output
    results = [
        folder / "scores.json",
        folder / "run.json",
        *(folder / "tables").iterdir(),
        folder / "figures/table4.svg",
        folder / "report.html",
    ]
    assert {path.name for path in results} >= {"table4.md", "table4.tex", "table4.csv"}
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results}
    with (tmp_path / "third.log").open("w") as log:
        assert start(tiny_llava, mirror_root, log).wait() == 0, (tmp_path / "third.log").read_text()
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in results} == before


def test_sigterm_ends_what_was_started(folder, tiny_llava, mirror_root, tmp_path):
    with (tmp_path / "log").open("w") as log:
        process = start(tiny_llava, mirror_root, log)
        while not (folder / "answers").exists():
            time.sleep(0.1)
            assert process.poll() is None, (tmp_path / "log").read_text()
        process.terminate()
        assert process.wait(timeout=60) != 0
    assert "error: stopped" in (tmp_path / "log").read_text()
    alive = subprocess.run(["ps", "-ewwo", "stat,args"], capture_output=True, text=True).stdout  # noqa: S607
    assert not [line for line in alive.splitlines() if f"results/{RUN}" in line and not line.startswith("Z")]
