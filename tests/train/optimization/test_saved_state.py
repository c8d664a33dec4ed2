"""What may be in the index of a sharded checkpoint, and what is refused."""

import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as sharded

from modeling_aligned_llava.errors import UserError
from train.optimization.saved_state import reading_state


@pytest.fixture
def checkpoint(tmp_path):
    state = {"weight": torch.zeros(3, dtype=torch.bfloat16), "state": {"step": 1, "moments": [torch.ones(2)]}}
    sharded.save(state, checkpoint_id=tmp_path / "checkpoint-2" / "optimizer_0", no_dist=True)
    return tmp_path / "checkpoint-2"


def test_an_index_as_torch_writes_it_is_read(checkpoint):
    with reading_state(checkpoint):
        pass


@pytest.mark.filterwarnings("ignore")
def test_an_index_that_would_run_something_is_refused(checkpoint, tmp_path):
    class Evil:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    (checkpoint / "optimizer_0" / ".metadata").write_bytes(pickle.dumps(Evil()))
    message = r"checkpoint-2: its training state is damaged or would run code, and was not read \(pathlib.*Path\.touch"
    with pytest.raises(UserError, match=message), reading_state(checkpoint):
        pytest.fail("read")
    assert not (tmp_path / "ran").exists()


def test_other_errors_stay_as_they_are():
    with pytest.raises(RuntimeError, match="out of memory"), reading_state(None):
        raise RuntimeError("out of memory")
