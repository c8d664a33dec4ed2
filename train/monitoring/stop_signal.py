"""Ctrl-C and SIGTERM end training after the step at hand, with a checkpoint from which the run continues."""

import signal
import time
from types import FrameType
from typing import Self

import torch
from accelerate.utils import reduce
from transformers import TrainerCallback

from modeling_aligned_llava.errors import STOPPING, Stopped


class StopOnSignal(TrainerCallback):
    """A context in which signals end training. All processes end after the same step, whichever got the signal.

    A second Ctrl-C, a second or more after the first, ends at once, without a checkpoint.

    Attributes:
        stopped: whether training ended early because of a signal.
        number: of the signal; SIGTERM if only another process got one.
    """

    def __init__(self) -> None:
        self.stopped = False
        self.number: int = signal.SIGTERM
        self._received: float | None = None  # when

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in STOPPING}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self._received is not None and now > self._received + 1:
            raise Stopped(number)
        if self._received is None:
            self._received, self.number = now, number

    def on_step_end(self, args, state, control, **kwargs):
        received = torch.tensor(float(self._received is not None), device=args.device)
        if args.world_size > 1:
            received = reduce(received, "sum")
        if received and state.global_step < state.max_steps:
            self.stopped = control.should_save = control.should_training_stop = True
            control.should_log = True  # the mean since the last log is not in the checkpoint
