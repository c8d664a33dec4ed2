"""The cost model reproduces LLaVA-1.5's published hours, its page is its output, and measured points calibrate it."""

import copy
import json

import pytest

from benchmarks.scaling import (
    LLAVA,
    SHEETS,
    UTILIZATION,
    calibration,
    llava_hours,
    measured,
    percent,
    plan,
    renewed,
    tables,
)
from tests import REPOSITORY
from train.step_time import reached


@pytest.mark.parametrize("stage", LLAVA)
def test_the_published_hours_are_reproduced_within_30_percent(stage):
    assert llava_hours(stage) == pytest.approx(LLAVA[stage].hours, rel=0.3)


def test_the_page_has_the_tables_of_today():
    page = (REPOSITORY / "docs/scaling.md").read_text(encoding="utf-8")
    text = tables("h100", calibration("h100", []))
    assert text in page and renewed(page, text) == page, "python -m benchmarks.scaling --write docs/scaling.md"


def test_measured_points_replace_ceilings_and_utilization(tmp_path):
    recorded = REPOSITORY / "benchmarks/results/train_throughput_amd_epyc_202611.json"
    result = json.loads(recorded.read_text(encoding="utf-8"))
    found, slower = measured(result), copy.deepcopy(result)
    for stage in slower["stages"].values():
        for pair in stage["pairs"]:
            pair["ours"]["seconds"] *= 2
    assert measured(slower) == {name: pytest.approx(share / 2) for name, share in found.items()}
    page = " ".join((REPOSITORY / "docs/scaling.md").read_text(encoding="utf-8").split())
    assert f"stage 1 reaches {percent(found['stage1'])} and stage 2 {percent(found['stage2'])}" in page
    point = tmp_path / "point.json"
    result["matmul_share"] = {"bfloat16": {"matmul_tflops": 700.0, "copy_terabytes": 3.0}}
    point.write_text(json.dumps(result))
    given = calibration("h100", [point])
    assert (given.machine.matmul, given.machine.bandwidth) == (7e14, 3e12)
    assert given.machine.link == reached(SHEETS["h100"]).link
    assert given.of("stage2") == given.of("stage2_lora") != UTILIZATION


def test_what_does_not_fit_has_no_hours():
    machine = reached(SHEETS["h100"])
    assert plan("qwen2.5-7b", "stage2", 1, machine, UTILIZATION).step is None
    assert plan("qwen2.5-7b", "stage2", 8, machine, UTILIZATION).fits > 0
    assert plan("llama-3.2-3b", "stage2", 512, machine, UTILIZATION).global_batch == 512
