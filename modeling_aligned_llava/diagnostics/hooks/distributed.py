"""The processes of `torchrun`, which share the images and join their measurements."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


@contextmanager
def process_group() -> Iterator[tuple[int, int]]:
    """Yield (rank, number of processes); the group exists inside the `with` block. (0, 1) without `torchrun`."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield 0, 1
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank(), world
    finally:
        dist.destroy_process_group()


def is_first() -> bool:
    """Whether this is the process that prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def gather(content: Any, world: int) -> list[Any]:
    """The `content` of every process, in the order of ranks."""
    if world == 1:
        return [content]
    found: list[Any] = [None] * world
    dist.all_gather_object(found, content)
    return found
