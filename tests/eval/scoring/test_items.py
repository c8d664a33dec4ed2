"""Items from a harness's files."""

import json
from dataclasses import replace

import pytest

from eval.data.benchmarks import BY_KEY
from eval.scoring.items import read_result


def test_questions_of_mmbench_about_one_image_are_one_cluster(tmp_path):
    """Three questions of two rotations; the first two are about one image. Rows come in the order of the data."""
    indices = [1, 2, 3, 1_000_001, 1_000_002, 1_000_003]
    lines = [
        {"doc_id": row, "gpt_eval_score": {"index": index}, "filtered_resps": "A"} for row, index in enumerate(indices)
    ]
    samples = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "20260101_000000_samples_mmbench_en_dev_static.jsonl").write_text(samples)
    results = {
        "results": {"mmbench_en_dev_static": {"gpt_eval_score,none": 100.0}},
        "n-samples": {"mmbench": {"effective": 6}},
        "configs": {"mmbench_en_dev_static": {"generation_kwargs": {"max_new_tokens": 1024}}},
    }
    (tmp_path / "20260101_000000_results.json").write_text(json.dumps(results))
    benchmark = replace(BY_KEY["mmbench"], correct=lambda own: 1.0, parses=lambda line: True, subtasks=None)
    images = {0: "one", 1: "one", 2: "other", 3: "one", 4: "one", 5: "other"}
    found = read_result(benchmark, tmp_path, 6, images, tmp_path)
    items = found.items
    assert found.answer_tokens == 1024
    assert (items.id, items.cluster) == (["1", "2", "3"], ["one", "one", "other"])


@pytest.fixture
def ocrbench_log(tmp_path):
    """Four questions, one right, as the stock task logs them; it divides by 1,000 whatever the data has."""
    lines = [
        {"doc_id": row, "ocrbench_accuracy": {"score": int(row == 2)}, "filtered_resps": "word"} for row in range(4)
    ]
    (tmp_path / "20260101_000000_samples_ocrbench.jsonl").write_text("".join(json.dumps(x) + "\n" for x in lines))
    results = {
        "results": {"ocrbench": {"ocrbench_accuracy,none": 1 / 1000}},
        "n-samples": {"ocrbench": {"effective": 4}},
        "configs": {"ocrbench": {}},
    }
    (tmp_path / "20260101_000000_results.json").write_text(json.dumps(results))
    return tmp_path


def test_a_trial_scales_what_divides_by_a_fixed_number_of_rows(ocrbench_log):
    benchmark = replace(BY_KEY["ocrbench"], subtasks=None)
    assert read_result(benchmark, ocrbench_log, 4, {}, ocrbench_log, trial=True).score == 25
    with pytest.raises(ValueError, match="the stock OCRBench score divides by 1000, the data has 4 rows"):
        read_result(benchmark, ocrbench_log, 4, {}, ocrbench_log)
