"""The measurements of a GPU at toy shapes on the CPU; a run continues where it stopped and goes on after a failure."""

import json
import sys

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.__main__ import PARTS, Part, file_of, report, run_all, self_test
from modeling_aligned_llava.errors import UserError


def test_quick_parts_run_at_a_toy_shape():
    quick = [part for part in PARTS if part.quick]
    results = self_test(quick)
    assert results.keys() == {part.name for part in quick}
    assert results["ceilings"]["matmul_tflops"]["bfloat16"] > 0 and results["ceilings"]["copy_terabytes"] > 0
    numerics = results["numerics"]
    assert numerics["compensated_gradient_error"]["float32"] < 1e-5
    assert all(found["gradient"] < 1e-4 for found in numerics["packed_against_padded"].values())
    differing = numerics["answers_that_differ_from_batch_1"]
    assert [count for name, count in differing.items() if name.startswith("float32")] == [0, 0, 0, 0]
    evaluation = results["evaluation_3b"]
    assert evaluation["stock"] == "plain batch-1 generate loop"
    for task in evaluation["tasks"].values():
        assert task["same_answers"] == task["documents"] > 0  # float32
    for stage in (1, 2):
        assert results[f"train_stage{stage}_3b"]["ratios"].keys() == {f"stage{stage}"}
    assert "norm-gwc" in results["norm_overhead"]["ratios"]


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("part", [part for part in PARTS if not part.quick], ids=lambda part: part.name)
def test_other_parts_run_at_a_toy_shape_in_processes_of_their_own(part):
    (result,) = self_test([part]).values()
    measured = {
        "benchmarks.train_throughput": "ratios",
        "benchmarks.eval_throughput": "ratios",
    }
    assert result[measured[part.module]]


def test_every_part_ends_within_nine_minutes_by_its_own_estimate():
    assert all(part.minutes * 60 <= gpu.LIMIT for part in PARTS)
    assert len({part.name for part in PARTS}) == len(PARTS)


def part(name, minutes=1.0, module="no.such.module"):
    return Part(name, "about it", module, "--shape 3b", "", minutes)


@pytest.fixture
def card(monkeypatch):
    """As if there were a GPU; `benchmarks.gpu` itself asks nothing else of it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H100 80GB HBM3")


def test_results_are_kept_and_failures_do_not_stop_the_rest(card, monkeypatch, tmp_path, capsys):
    run = []

    def start(command, **options):
        run.append(command[2])
        if command[2] == "bad":
            return gpu.subprocess.CompletedProcess(command, 1, "", "Traceback\nRuntimeError: too old\n")
        with open(command[-1], "w") as out:
            json.dump({"ratios": {"stage2": 1.75}, "pairs": [1, 2]}, out)
        return gpu.subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(gpu.subprocess, "run", start)
    parts = [part("first", module="bad"), part("second", module="good")]
    with pytest.raises(UserError, match="failed: first"):
        run_all(parts, tmp_path)
    file = file_of(tmp_path, parts[1], "NVIDIA H100 80GB HBM3")
    assert file.name.startswith("second_nvidia_h100_80gb_hbm3_2") and json.loads(file.read_text())["pairs"] == [1, 2]
    assert "| ratios / stage2 | 1.75 |" in file.with_suffix(".md").read_text()
    with pytest.raises(UserError):
        run_all(parts, tmp_path)
    assert run == ["bad", "good", "bad"]
    assert "RuntimeError: too old" in capsys.readouterr().err


def test_a_part_without_its_packages_is_skipped(card, tmp_path, capsys):
    run_all([Part("lonely", "about", "no.module", "", "", 1.0, ("no_such_package",))], tmp_path)
    assert "skipped: needs no_such_package" in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_without_a_gpu_nothing_is_measured(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path)])
    with pytest.raises(UserError, match="--self-test"):
        gpu.main()


def test_a_report_names_the_command_and_every_number():
    text = report(part("x"), {"note": "n", "deep": {"a": 0.123456, "b": 3}, "list": [1]})
    assert "`python -m no.such.module --shape 3b`" in text
    assert "| deep / a | 0.1235 |" in text and "| deep / b | 3 |" in text and "list" not in text
