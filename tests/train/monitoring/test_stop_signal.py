"""SIGTERM and Ctrl-C end training after the step at hand; the run continues from there with the same weights."""

import json
import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from modeling_aligned_llava.errors import Stopped
from train.monitoring.log import LossLog
from train.monitoring.stop_signal import StopOnSignal
from train.stage import run_stage


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_costs_no_step(straight, stage_arguments, tmp_path, monkeypatch, number):
    arguments = stage_arguments(2, "norm-gwc", tmp_path, model_name_or_path=straight / "stage1", logging_steps=4)
    before = signal.getsignal(number)
    message = f"stopped by {number.name}; .* continues from .*checkpoint-3"
    with (
        monkeypatch.context() as patch,
        pytest.raises(Stopped, match=message),
    ):
        patch.setattr(
            LossLog,
            "on_step_begin",
            lambda s, a, state, c, **_: os.kill(os.getpid(), number) if state.global_step == 2 else None,
            raising=False,
        )
        run_stage(arguments)
    assert signal.getsignal(number) == before
    run_stage(arguments)
    expected = load_file(straight / "stage2/model.safetensors")
    found = load_file(tmp_path / "norm-gwc/stage2/model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    lines = map(json.loads, (tmp_path / "norm-gwc/stage2/log.jsonl").read_text().splitlines())
    assert [line["step"] for line in lines] == [3, 4]  # the mean of steps 1 to 3 would be lost


def test_a_second_ctrl_c_ends_at_once(monkeypatch):
    now = 100.0
    monkeypatch.setattr("train.monitoring.stop_signal.time.monotonic", lambda: now)
    with StopOnSignal() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)  # the shell passes it on as well
        now += 2
        with pytest.raises(Stopped, match="SIGINT"):
            os.kill(os.getpid(), signal.SIGINT)
        assert not stop.stopped
