"""Data-parallel evaluation: with `accelerate launch -m lmms_eval ...` each process answers some of the documents."""

import os
from typing import TYPE_CHECKING


if TYPE_CHECKING:
    from accelerate import Accelerator


def launched() -> "Accelerator | None":
    """Return the accelerator of this process if `accelerate launch` started several; None otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator

    return Accelerator()


def own_log(answer_log: str | None, rank: int) -> str | None:
    """Return the answer log of a process: a log has one writer, so all but the first get their own beside it."""
    return f"{answer_log}.{rank}" if answer_log and rank else answer_log
