"""What the faults happen to: a tiny checkpoint, six steps of stage 2, small file systems, a small comparison."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoProcessor

from tests.clone import clone_repository
from tests.faults.disks import mount
from tests.faults.small_run import PHASES, SmallRun
from tests.train.conftest import stage_arguments, tiny_data, train_stage
from tests.train.data.rows import tokenization
from train.data.llava_tokens import LlavaTokens


__all__ = ["mount", "stage_arguments", "tiny_data", "train_stage"]

METHOD = "norm-gwc"


@pytest.fixture(scope="session")
def checkpoint(tiny_checkpoint) -> Path:
    """Treat it as read-only."""
    return tiny_checkpoint(METHOD)


@pytest.fixture
def processor(checkpoint) -> Any:
    return AutoProcessor.from_pretrained(checkpoint)


@pytest.fixture
def how(processor) -> LlavaTokens:
    return tokenization(processor, 512)


@pytest.fixture(scope="session")
def stage2(checkpoint, stage_arguments) -> Callable[..., list[str]]:
    """`stage2(root, **settings)` -> command line of six steps, a checkpoint every two, into `root/norm-gwc/stage2`."""

    def command(root: Path, **settings: object) -> list[str]:
        return stage_arguments(2, METHOD, root, **{"model_name_or_path": checkpoint, "probe_rows": 0, **settings})

    return command


@pytest.fixture(scope="session")
def undisturbed(train_stage, tmp_path_factory) -> Path:
    """A stage 2 that nothing has disturbed."""
    return train_stage(tmp_path_factory.mktemp("undisturbed"), 2, METHOD, probe_rows=0)


@pytest.fixture(scope="session")
def straight_run(tmp_path_factory) -> SmallRun:
    """Every phase ran once without a fault, the first one with a bare home; treat it as read-only."""
    run = SmallRun(tmp_path_factory.mktemp("straight") / "run")
    clone_repository(run.clone)
    for phase in PHASES:
        run.finish(phase)
    return run
