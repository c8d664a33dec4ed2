"""How much fits: the size of batches from the memory that is free, and smaller batches when it runs out."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil
import torch

from modeling_aligned_llava.inference.prefix_plan import Segment


CPU_TOKENS = 16_384  # more do not run faster on a CPU
CPU_TOKENS_PER_PASS = 1_024  # enough to keep its cores busy; attention is quadratic in it
GPU_TOKENS_PER_PASS = 16_384
ANSWER_TOKENS = 64  # reserved for an answer when a batch is planned; a longer one takes more as it grows
CACHE_SHARE, PASS_SHARE = 0.5, 0.25  # of the free memory; the rest is for the vision tower and fragmentation
CPU_IS_FULL = "DefaultCPUAllocator: can't allocate memory"  # in a RuntimeError: PyTorch has no class for it

Result = TypeVar("Result")


@dataclass(frozen=True)
class Budget:
    """Tokens in the key/value cache of a batch, and tokens in one forward pass."""

    tokens: int
    tokens_per_pass: int


def cache_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes that one token takes in the key/value cache of a decoder with this text configuration."""
    heads = config.num_attention_heads
    keys = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    return 2 * config.num_hidden_layers * keys * size * dtype.itemsize


def pass_bytes(config: Any, dtype: torch.dtype, columns: int) -> int:
    """Bytes that one token of a pass over `columns` columns takes: its row of the mask, its states and its logits."""
    mask = columns * (dtype.itemsize + 3)  # and three masks of booleans while it is built
    states = (8 * config.hidden_size + 3 * config.intermediate_size) * dtype.itemsize
    return mask + states + config.vocab_size * (dtype.itemsize + 4)  # log-probabilities are taken in float32


def budget(model: Any) -> Budget:
    """Return what fits beside `model` now. It is a power of two, so that a resumed run forms the same batches."""
    config, dtype, device = model.config.get_text_config(), model.dtype, model.device
    on_gpu = device.type != "cpu"
    free = free_bytes(device)
    tokens = _power_of_two(CACHE_SHARE * free / cache_bytes(config, dtype))
    tokens = tokens if on_gpu else min(tokens, CPU_TOKENS)
    in_a_pass = _power_of_two(PASS_SHARE * free / pass_bytes(config, dtype, tokens))
    return Budget(tokens, min(in_a_pass, tokens, GPU_TOKENS_PER_PASS if on_gpu else CPU_TOKENS_PER_PASS))


def free_bytes(device: torch.device) -> int:
    """Free memory of a device, with what PyTorch holds but does not use."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return psutil.virtual_memory().available


def _power_of_two(number: float) -> int:
    return 2 ** int(math.log2(max(number, 1)))


def halving(
    answer: Callable[[list[Segment]], list[Result]], batch: list[Segment], release: Callable[[], None]
) -> list[Result]:
    """Answer a batch; when memory runs out, its halves, one after the other.

    Args:
        release: gives up what is kept from batch to batch.

    Raises:
        torch.OutOfMemoryError: not even one row fits; on a CPU a RuntimeError.
    """
    try:
        return answer(batch)
    except RuntimeError as error:
        memory_ran_out = isinstance(error, torch.OutOfMemoryError) or CPU_IS_FULL in str(error)
        halves = _halves(batch) if memory_ran_out else None
        if halves is None:
            raise
    release()
    torch.cuda.empty_cache()  # after the except block, which keeps the tensors of the failed pass alive
    return [result for half in halves for result in halving(answer, half, release)]


def _halves(batch: list[Segment]) -> tuple[list[Segment], list[Segment]] | None:
    """The first and the second half of the segments, or of the rows of the only one; None for a single row."""
    if len(batch) > 1:
        middle = len(batch) // 2
        return batch[:middle], batch[middle:]
    rows, shared = batch[0].rows, batch[0].shared
    if len(rows) == 1:
        return None
    parts = rows[: len(rows) // 2], rows[len(rows) // 2 :]
    first, second = ([Segment(part, shared if len(part) > 1 else 0)] for part in parts)
    return first, second
