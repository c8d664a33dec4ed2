"""Shares the images among the processes of `torchrun`, and joins what they measured."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist


@contextmanager
def processes() -> Iterator[tuple[int, int]]:
    """(rank, number of processes); the group lives inside the `with` block. (0, 1) outside of `torchrun`."""
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
    """Whether this process is the one that prints and writes."""
    return os.environ.get("RANK", "0") == "0"


def gathered(content: Any, world: int) -> list[Any]:
    """What every process holds, in the order of their ranks."""
    if world == 1:
        return [content]
    found: list[Any] = [None] * world
    dist.all_gather_object(found, content)
    return found
