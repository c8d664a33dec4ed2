"""Where steps run: GPUs are shared out."""

import pytest

from eval.engine import pool as module
from eval.engine.child import logged
from eval.engine.pool import open_pool
from eval.engine.steps import Step, run_steps


@pytest.mark.parametrize(
    ("jobs", "visible", "expected"),
    [(4, "4,GPU-8f2e", ["4", "GPU-8f2e", "4", "GPU-8f2e"]), (1, None, ["0"]), (None, None, ["0", "1"])],
)
def test_commands_of_steps_share_the_gpus(jobs, visible, expected, monkeypatch, tmp_path):
    monkeypatch.setattr(module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(module.torch.cuda, "device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    pool = open_pool(jobs, "auto")
    assert pool.slots() == len(expected) and pool.resource == "GPU" and open_pool(jobs, "cpu").resource == "CPU"
    # Each waits for the others, so that every slot is taken once.
    meet = f"echo x >> here; while [ $(wc -l < here) -lt {len(expected)} ]; do sleep 0.01; done"
    command = ["bash", "-c", f"cd {tmp_path}; {meet}; echo $CUDA_VISIBLE_DEVICES"]
    steps = [Step(str(i), lambda i=i: logged(command, tmp_path / f"{i}.log"), 1) for i in range(len(expected))]
    seen = []
    assert run_steps(steps, pool, lambda _, line: seen.append(line), print)
    assert sorted(seen) == sorted(expected)
