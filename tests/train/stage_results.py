"""What a stage left in its folder, and a run that is interrupted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from train.monitoring.log import LossLog


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def lines(folder: Path, name: str = "log.jsonl") -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def assert_same_weights(found: Path, expected: Path) -> None:
    """The weights in two folders are the same to the bit."""
    one, other = weights(found), weights(expected)
    assert one.keys() == other.keys()
    assert [name for name, tensor in one.items() if not torch.equal(tensor, other[name])] == []


@contextmanager
def interrupted_after(step: int) -> Iterator[None]:
    """The stage that runs in this block is interrupted once it has taken `step` steps."""

    def stop(self, args, state, control, **kwargs):
        if state.global_step == step:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(LossLog, "on_step_begin", stop, raising=False)
        yield
