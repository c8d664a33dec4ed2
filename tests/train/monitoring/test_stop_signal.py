"""SIGTERM and Ctrl-C end training after the step at hand; the run continues from there with the same weights."""

import os
import signal

import pytest

from modeling_aligned_llava.errors import Stopped
from tests.train.stage_results import assert_same_weights, lines
from train.monitoring.log import LossLog
from train.monitoring.stop_signal import StopOnSignal
from train.stage import run_stage


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_costs_no_step(straight, stage_arguments, tmp_path, monkeypatch, number):
    arguments = stage_arguments(2, "norm-gwc", tmp_path, model_name_or_path=straight / "stage1", logging_steps=4)
    before = signal.getsignal(number)
    message = f"stopped by {number.name}; .* continues from .*checkpoint-3"

    def send(self, args, state, control, **kwargs):
        if state.global_step == 2:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch, pytest.raises(Stopped, match=message):
        patch.setattr(LossLog, "on_step_begin", send, raising=False)
        run_stage(arguments)
    assert signal.getsignal(number) == before
    run_stage(arguments)
    assert_same_weights(tmp_path / "norm-gwc/stage2", straight / "stage2")
    logged = [line["step"] for line in lines(tmp_path / "norm-gwc/stage2")]
    assert logged == [3, 4]  # the mean of steps 1 to 3 would be lost


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
