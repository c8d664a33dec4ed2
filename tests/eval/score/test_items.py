"""Items from a harness's files."""

import json
from dataclasses import replace

import pytest

from eval.data.benchmarks import BY_KEY
from eval.score.items import read_result


@pytest.fixture
def write_log(tmp_path):
    """`write_log(task, metric, score, lines, **generation)` -> the folder of a finished task of lmms-eval."""

    def write(task, metric, score, lines, **settings):
        samples = "".join(json.dumps({"doc_id": row, **line}) + "\n" for row, line in enumerate(lines))
        (tmp_path / f"20260101_000000_samples_{task}.jsonl").write_text(samples)
        results = {"results": {task: {metric: score}}, "configs": {task: settings}}
        results["n-samples"] = {task: {"effective": len(lines)}}
        (tmp_path / "20260101_000000_results.json").write_text(json.dumps(results))
        return tmp_path

    return write


def test_questions_of_mmbench_about_one_image_are_one_cluster(write_log):
    """Three questions of two rotations; the first two are about one image. Rows come in the order of the data."""
    indices = [1, 2, 3, 1_000_001, 1_000_002, 1_000_003]
    lines = [{"gpt_eval_score": {"index": index}, "filtered_resps": "A"} for index in indices]
    settings = {"generation_kwargs": {"max_new_tokens": 1024}}
    folder = write_log("mmbench_en_dev_static", "gpt_eval_score,none", 100.0, lines, **settings)
    benchmark = replace(BY_KEY["mmbench"], correct=lambda lines: 1.0, parses=lambda line: True, subtasks=None)
    images = {0: "one", 1: "one", 2: "other", 3: "one", 4: "one", 5: "other"}
    result = read_result(benchmark, folder, 6, images, folder)
    assert result.answer_tokens == 1024
    assert (result.items.id, result.items.cluster) == (["1", "2", "3"], ["one", "one", "other"])


def test_a_trial_scales_what_divides_by_a_fixed_number_of_rows(write_log):
    """The stock OCRBench divides by 1,000 whatever the data has: one of four questions is right."""
    lines = [{"ocrbench_accuracy": {"score": int(row == 2)}, "filtered_resps": "word"} for row in range(4)]
    folder = write_log("ocrbench", "ocrbench_accuracy,none", 1 / 1000, lines)
    benchmark = replace(BY_KEY["ocrbench"], subtasks=None)
    assert read_result(benchmark, folder, 4, {}, folder, trial=True).score == 25
    with pytest.raises(ValueError, match="the stock OCRBench score divides by 1000, the data has 4 rows"):
        read_result(benchmark, folder, 4, {}, folder)
