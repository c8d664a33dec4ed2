"""How a step is computed on the device at hand: its micro-batches, and the layers whose activations are not kept."""

from typing import Any

import numpy as np
import torch
from trl import SFTConfig

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.assembly.from_backbones import patches
from train.cost import SPARE, Batch, device_memory, memory
from train.optimization.sampler import LengthGroupedSampler, MicroBatchSampler
from train.parse import uses_fsdp
from train.settings import OptimizationArguments


FULL = 8192  # tokens that fill a GPU; with more, a step of 128 rows gets more padding
ON_CPU = 2048  # a CPU is busy with less
EVERY = (0, 4, 3, 2, 1)  # every how many layers one is computed again, from the fastest choice to the smallest
SHARE = 0.9  # of the memory that is planned: the estimate of activations was up to 15 % low (docs/train.md)


def plan_step(
    model: Any,
    lengths: np.ndarray,
    optimization: OptimizationArguments,
    training: SFTConfig,
    *,
    engine: str | None = None,
    processes: int | None = None,
    device_bytes: float | None = None,
) -> MicroBatchSampler | None:
    """Choose what is left to the machine, and set it in `training`: gradient checkpointing and accumulation.

    Args:
        model: with its parameters frozen or not, as it will be trained.
        lengths: tokens of each row.
        engine, processes: how they will train, by default those of now. The engine is one of `train.cost.ENGINES`.
        device_bytes: memory of the GPU that will train; by default that of this machine, or its own without a GPU.

    Returns:
        The micro-batches, or None if each has `per_device_train_batch_size` rows.

    Raises:
        UserError: a budget given by the user is below the longest row.
    """
    processes = processes or training.world_size
    full = FULL if device_bytes is not None or torch.cuda.is_available() else ON_CPU
    if device_bytes is None:
        device_bytes = device_memory() / (1 if torch.cuda.is_available() else processes)
    budget, every = optimization.token_budget, recomputed(training)
    if optimization.choose_checkpointing or budget is None:
        budget, every = fitting(
            model,
            int(lengths.max()),
            full,
            budget if optimization.by_tokens else training.per_device_train_batch_size * int(lengths.max()),
            None if optimization.choose_checkpointing else every,
            device_bytes,
            engine=engine or ("fsdp2" if uses_fsdp(training) else "one" if processes == 1 else "ddp"),
            processes=processes,
            bf16=bool(training.bf16),
        )
    if optimization.choose_checkpointing and every:
        kwargs = {"use_reentrant": False, "every_n_layers": every}
        for name in ("gradient", "activation"):  # the first is its name until transformers 6
            setattr(training, f"{name}_checkpointing", True)
            setattr(training, f"{name}_checkpointing_kwargs", kwargs)
    if not optimization.by_tokens:
        return None
    rows = LengthGroupedSampler(
        lengths,
        optimization.global_batch_size,
        training.seed,
        training.dataloader_drop_last,
        training.train_sampling_strategy == "sequential",
        mixed=True,
    )
    steps = -(-len(rows) // rows.step_size)
    epochs = -(-training.max_steps // steps) if training.max_steps > 0 else int(np.ceil(training.num_train_epochs))
    micro_batches = MicroBatchSampler(rows, int(budget or 0), epochs, processes, training.process_index)
    training.gradient_accumulation_steps = micro_batches.per_step
    return micro_batches


def describe_step(micro_batches: MicroBatchSampler | None, rows: int, training: SFTConfig) -> str:
    """A line about a step of so many rows."""
    if micro_batches is None:
        micro_batch, accumulated = training.per_device_train_batch_size, training.gradient_accumulation_steps
        processes = training.world_size
        return f"global batch {rows} = {micro_batch} rows x {processes} processes x {accumulated} accumulation steps"
    again = {0: "no layer", 1: "all layers"}.get(recomputed(training), f"one of {recomputed(training)} layers")
    return (
        f"global batch {rows} in {micro_batches.processes} processes x {micro_batches.per_step} micro-batches of at "
        f"most {micro_batches.budget} tokens ({micro_batches.padding():.1%} padding); {again} computed again"
    )


def fitting(
    model: Any,
    longest: int,
    full: int,
    tokens: int | None,
    checkpointing: int | None,
    device_bytes: float,
    **how: Any,
) -> tuple[int, int]:
    """Tokens of a micro-batch and `checkpointing` that fit into the memory of a device and fill it.

    Args:
        model: as it will be trained; may be on the meta device.
        longest: tokens of the longest row, which the smallest micro-batch holds.
        full: tokens that fill the device.
        tokens: if that is fixed.
        checkpointing: if that is fixed (`train.cost.memory`).
        device_bytes: its memory.
        how: engine, processes and precision, for `train.cost.memory`.

    Returns:
        Both; the smallest choice if none fits.
    """
    room = SHARE * device_bytes - SPARE
    choices = EVERY if checkpointing is None else (checkpointing,)
    wanted = tokens or max(full, longest)
    for every in choices:
        if _need(model, wanted, longest, every, how) <= room:
            return wanted, every
    if tokens is not None:
        return tokens, choices[-1]
    fixed = _need(model, 0, longest, choices[-1], how)
    a_token = (_need(model, wanted, longest, choices[-1], how) - fixed) / wanted
    return max(longest, int((room - fixed) / a_token)), choices[-1]


def _need(model: Any, tokens: int, longest: int, checkpointing: int, how: dict[str, Any]) -> float:
    return memory(model, one_micro_batch(model, tokens, longest), checkpointing=checkpointing, **how).total


def one_micro_batch(model: Any, tokens: int, longest: int) -> Batch:
    """A micro-batch of so many tokens in rows of the longest, with as many images as it may hold."""
    ours = isinstance(model, AlignedLlavaForConditionalGeneration)  # of others, the tower is not counted
    return Batch(
        rows=tokens / longest, length=longest, images=tokens / patches(model.config.vision_config) if ours else 0
    )


def recomputed(training: SFTConfig) -> int:
    """Every how many layers one is computed again; 0: none."""
    kwargs: Any = training.gradient_checkpointing_kwargs or {}
    return kwargs.get("every_n_layers", 1) if training.gradient_checkpointing else 0
