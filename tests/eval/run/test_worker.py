"""A worker on a harness that is a stand-in: what a task's result says. No model is loaded."""

import io
import json
import re
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from eval.plan.job import Task
from eval.run.harnesses import REASONING_TAGS
from eval.run.worker import Worker
from eval.score.results import made_by
from modeling_aligned_llava.loading.files import read_json
from tests.eval.run.test_schedule import job


@pytest.fixture
def ended(tmp_path, mirror_root):
    """`ended(reported)` -> the result of POPE, of whose four answers one is right, if the harness reports this."""

    def write(benchmark, folder, progress, reported):
        lines = [
            {"doc_id": row, "filtered_resps": "no", "pope_accuracy": {"score": float(row == 1), "prediction": "no"}}
            for row in range(4)
        ]
        results = {
            "results": {"pope": {benchmark.metric: reported, "pope_f1_score,none": 0.4}},
            "n-samples": {"pope": {"effective": 4}},
            "configs": {"pope": {"generation_kwargs": {"max_new_tokens": 128}}},
        }
        (folder / "1_samples_pope.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "1_results.json").write_text(json.dumps(results))
        return {}

    def run(reported):
        places = {"output": str(tmp_path), "answers": str(tmp_path), "root": str(mirror_root)}
        pope = replace(job("a"), tasks=[Task("pope", 4, "")], limit=4, **places)
        worker = Worker(pope, io.StringIO())
        worker.harness = SimpleNamespace(evaluate=lambda *arguments: write(*arguments, reported))
        worker.run()
        return read_json(pope.result("pope"))

    return run


def test_a_result_says_what_made_it(ended):
    result = ended(0.25)
    assert (result["status"], result["score"], result["answer_tokens"]) == ("ok", 25, 128)
    assert result["further"] == {"F1": 40.0}
    assert result["made_by"] == made_by() and result["seconds"] > 0
    assert result["items"]["subtask"] == ["adversarial"] * 4


def test_a_score_that_its_log_does_not_add_up_to_fails(ended):
    result = ended(0.5)
    assert result["status"] == "failed" and "score" not in result
    assert result["reason"] == "ValueError: the harness reports 50.0000, its sample log adds up to 25.0000"


def test_thoughts_are_left_out_as_on_lmms_evals_command_line():
    command_line = Path(find_spec("lmms_eval").origin).with_name("__main__.py").read_text()
    (default,) = re.findall(r'"--reasoning_tags",\s+type=str,\s+default=\'(.*)\',', command_line)
    assert default == REASONING_TAGS
