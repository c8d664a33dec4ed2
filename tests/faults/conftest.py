"""What the faults happen to: a tiny checkpoint, six steps of stage 2, small file systems, a small comparison."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.faults.disks import mount
from tests.faults.small_run import Straight, run_straight
from tests.train.conftest import stage_arguments, tiny_data
from train.stage import run_stage


__all__ = ["mount", "stage_arguments", "tiny_data"]

METHOD = "norm-gwc"


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint) -> Path:
    """Treat it as read-only."""
    return tiny_checkpoint(METHOD)


@pytest.fixture(scope="session")
def stage2(checkpoint, stage_arguments) -> Callable[..., list[str]]:
    """`stage2(root, **settings)` -> command line of six steps, a checkpoint every two, into `root/norm-gwc/stage2`."""

    def command(root: Path, **settings: object) -> list[str]:
        return stage_arguments(2, METHOD, root, **{"model_name_or_path": checkpoint, "probe_rows": 0, **settings})

    return command


@pytest.fixture(scope="session")
def assert_undisturbed(stage2, tmp_path_factory) -> Callable[[Path], None]:
    """`assert_undisturbed(stage)`: its weights are those of a stage 2 that nothing has disturbed."""
    root = tmp_path_factory.mktemp("undisturbed")
    run_stage(stage2(root))
    expected = load_file(root / METHOD / "stage2" / "model.safetensors")

    def check(stage: Path) -> None:
        found = load_file(stage / "model.safetensors")
        assert found.keys() == expected.keys()
        different = [name for name, tensor in expected.items() if not torch.equal(tensor, found[name])]
        assert not different, f"differ: {different[:3]}"

    return check


@pytest.fixture(scope="session")
def straight_run(tmp_path_factory) -> Straight:
    """Treat it as read-only."""
    return run_straight(tmp_path_factory.mktemp("straight") / "run")
