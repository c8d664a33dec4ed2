"""The steps of docs/contributing.md for a benchmark, followed on a copy of the repository."""

import json
import os
import re
import shutil
import subprocess
import sys
from textwrap import indent

import pytest
from datasets import List

from eval.data import benchmarks
from tests import REPOSITORY
from tests.benchmark_stand_in import TEXT, table, write_dataset
from tests.pages import blocks


CHOICES = ["a red box", "a green box", "a sphere", "nothing at all"]


def steps(language):
    return blocks(REPOSITORY / "docs/contributing.md", language, section="A benchmark")


def arc(n):
    labelled = {"text": CHOICES, "label": list("ABCD")}
    rows = [
        {"id": str(i), "question": f"What is number {i}?", "choices": labelled, "answerKey": "ABCD"[i % 4]}
        for i in range(n)
    ]
    return table(rows, choices={"text": List(TEXT), "label": List(TEXT)})


def test_the_entry_of_the_page_has_the_fields_of_a_benchmark():
    (entry,) = steps("python")
    added = eval(entry, vars(benchmarks))  # noqa: S307
    assert added.correct([{"acc_norm": 1.0}]) == 1.0 and added.key not in benchmarks.BY_KEY


@pytest.mark.slow
def test_a_benchmark_added_by_the_page_is_evaluated_and_reported(tiny_language_model, tmp_path):
    copy, data = tmp_path / "repository", tmp_path / "data"
    for folder in ("eval", "modeling_aligned_llava", "configuration", "tests", "tinyworld", "train"):
        shutil.copytree(REPOSITORY / folder, copy / folder, ignore=shutil.ignore_patterns("__pycache__"))
    registry = copy / "eval/data/benchmarks.py"
    (entry,) = steps("python")
    head, tail = registry.read_text(encoding="utf-8").split("EXTRA_BENCHMARKS = (\n")
    registry.write_text(f"{head}EXTRA_BENCHMARKS = (\n{indent(entry.rstrip(), '    ')},\n{tail}", encoding="utf-8")
    write_dataset(data / "allenai/ai2_arc", {"ARC-Easy": {"train": arc(2), "validation": arc(2), "test": arc(6)}})

    _fetch, commands = steps("bash")
    model = tiny_language_model
    values = {"python": sys.executable, "path/to/benchmarks": data, "path/to/one": model, "path/to/other": model}
    for placeholder, value in values.items():
        commands = re.sub(rf"\b{placeholder}\b", str(value), commands)
    commands += f"{sys.executable} -m pytest -m 'not slow' tests/eval/data tests/eval/score\n"
    environment = os.environ | {"PYTHONPATH": str(copy)}
    done = subprocess.run(["bash", "-ec", commands], cwd=copy, env=environment, capture_output=True, text=True)  # noqa: S603, S607
    assert done.returncode == 0, done.stdout + done.stderr

    run = copy / "results/new"
    scores = {(row["method"], row["benchmark"]): row for row in json.loads((run / "scores.json").read_text())}
    for model in ("a", "b"):
        assert (scores[model, "arc_easy"]["status"], scores[model, "arc_easy"]["n"]) == ("ok", 6)
        assert scores[model, "mmlu"]["status"] == "not run"
    assert scores["b", "arc_easy"]["delta"] == 0
    header = (run / "tables/table4.md").read_text().splitlines()[0]
    assert header.endswith("| Avg | ARC-Easy |")
    report = (run / "report.html").read_text()
    assert "ARC-Easy" in report
