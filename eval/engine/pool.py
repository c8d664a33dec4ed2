"""Where steps run: side by side in threads of this process, each of which waits for a command on a core or a GPU."""

import os
from dataclasses import dataclass
from itertools import cycle, islice

import torch


@dataclass(frozen=True)
class Pool:
    """The slots for steps.

    Attributes:
        devices: what CUDA_VISIBLE_DEVICES is for the commands of each slot; None where there is no GPU to share out.
    """

    devices: list[str | None]

    @property
    def resource(self) -> str:
        """What a slot is: "CPU" or "GPU"."""
        return "CPU" if self.devices[0] is None else "GPU"

    def slots(self) -> int:
        """How many steps run side by side."""
        return len(self.devices)


def open_pool(jobs: int | None, device: str) -> Pool:
    """The slots of this machine.

    Args:
        jobs: steps side by side; None for one a GPU, or 2 without GPUs.
        device: "cpu" leaves GPUs alone.
    """
    count = torch.cuda.device_count() if device != "cpu" and torch.cuda.is_available() else 0
    if not count:
        return Pool([None] * (jobs or 2))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else [str(index) for index in range(count)]
    return Pool(list(islice(cycle(names[:count]), jobs or count)))
