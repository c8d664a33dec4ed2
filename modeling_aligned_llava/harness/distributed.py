"""Data parallel evaluation: `accelerate launch -m lmms_eval ...`, each process with a share of the documents."""

import os
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from accelerate import Accelerator


def launched() -> "Accelerator | None":
    """The accelerator of this process among those that `accelerate launch` started; None if it is alone."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator

    return Accelerator()


def own_log(answer_log: str | None, rank: int) -> str | None:
    """A log has one writer: every process but the first has its own beside the first's."""
    return f"{answer_log}.{rank}" if answer_log and rank else answer_log
