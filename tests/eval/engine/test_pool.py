"""Where steps run: GPUs are shared out, and with RAY_ADDRESS the nodes of a cluster."""

import os

import pytest

from eval.engine import pool as module
from eval.engine.pool import open_pool
from eval.engine.steps import Step, run_steps


@pytest.mark.slow
def test_steps_share_the_gpus(monkeypatch):
    def own():
        yield os.environ["CUDA_VISIBLE_DEVICES"]

    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-8f2e")
    seen = []
    with open_pool(4, "auto") as pool:
        assert pool.slots() == 4 and pool.unit == 0.5
        run_steps([Step(str(i), own, 1) for i in range(4)], pool, lambda _, name: seen.append(name), print)
    assert sorted(seen) == ["4", "4", "GPU-8f2e", "GPU-8f2e"]
