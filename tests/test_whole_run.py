"""What `bash eval/run_all.sh` must show at toy scale; it is run here unless results/tinyworld is finished already."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from eval.data.benchmarks import BENCHMARKS
from tests import REPOSITORY


RUN = REPOSITORY / "results" / "tinyworld"
PYTHON = REPOSITORY / ".venv/bin/python"
METHODS = ("baseline", "norm", "norm-gwc")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (REPOSITORY / ".venv/installed").exists(), reason="run_all.sh would install .venv first"),
]


def command(*words: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in words], cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603


@pytest.fixture(scope="module", autouse=True)
def finished_run():
    ended = command("bash", "eval/run_all.sh")
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]


def scores() -> dict[tuple[str, str], dict]:
    rows = json.loads((RUN / "scores.json").read_text(encoding="utf-8"))
    return {(row["method"], row["benchmark"]): row for row in rows if row["source"] == "measured"}


def test_again_it_changes_nothing():
    def state() -> dict[Path, int]:
        files = [RUN / name for name in ("run.json", "scores.json", "report.html")]
        files += [*RUN.glob("tables/*"), *RUN.glob("checkpoints/*/*/*")]
        return {path: path.stat().st_mtime_ns for path in files}

    before = state()
    assert command("bash", "eval/run_all.sh").returncode == 0
    assert state() == before


def test_every_method_has_every_score():
    by_cell = scores()
    for method in METHODS:
        for benchmark in (*(benchmark.key for benchmark in BENCHMARKS), "avg"):
            row = by_cell[method, benchmark]
            assert row["status"] == "ok" and row["ci95"][0] <= row["score"] <= row["ci95"][1]
            assert (row["delta"] is None) == (method == "baseline")


def test_the_report_shows_norms_attention_and_training_of_every_method():
    page = (RUN / "report.html").read_text(encoding="utf-8")
    for method in METHODS:
        assert f'<th scope="row">{method}</th>' in page
        assert re.search(rf"<li>{method}: \S+ of the attention of the question's tokens falls on the image", page)
    assert f"Gradient norm before clipping, stage 2: {'; '.join(METHODS)}" in page
    assert "Toy result" in page and "No training logs" not in page and str(REPOSITORY) not in page


def test_handwritten_digits_are_read_20_points_above_chance():
    (samples,) = (RUN / "harness/baseline/ocrbench").rglob("*_samples_ocrbench.jsonl")
    rows = [json.loads(line)["ocrbench_accuracy"] for line in samples.read_text(encoding="utf-8").splitlines()]
    digits = [row["score"] for row in rows if row["question_type"] == "Digit String Recognition"]
    assert len(digits) == 100
    assert 100 * sum(digits) / len(digits) >= 20 + 1  # two digits or more: chance is at most 1 in 100


def test_visual_tokens_dwarf_text_in_the_trained_baseline(tmp_path):
    words = (RUN / "checkpoints/baseline/stage2", "--images", RUN / "data/images", "--json", tmp_path / "profile.json")
    ended = command(PYTHON, "-m", "eval.diagnostics", "profile", *words)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "profile.json").read_text(encoding="utf-8"))["ratio"] >= 10
