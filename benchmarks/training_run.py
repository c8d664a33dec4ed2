"""One side of `train_throughput` in this process: a training of ours or of TRL's stock `SFTTrainer`, and its figures.

Ours cuts a step by tokens and computes as few layers again as memory needs, as the recipes do; a shape that fixes the
rows of a micro-batch has neither. Both sides then see the same rows in each step, and the first step is a warm-up that
is not measured.
"""

import gc
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset, Image, List
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from benchmarks.record import peak_memory
from benchmarks.training_worlds import FROZEN, RATES, Shape, make_model, make_processor
from train.cost import Batch, flops
from train.data.family_tokens import FamilyCollator, FamilyTokens
from train.data.images import RowImages
from train.data.llava_tokens import ImageTextCollator, LlavaTokens
from train.data.prepared import checked_rows, open_training_data, row_lengths
from train.data.quarantine import Quarantine
from train.data.row_tokens import IGNORE_INDEX, RowTokens
from train.data.sources import raw_table, read_sources
from train.optimization.faster_layers import compile_layers
from train.optimization.finite_steps import FiniteSteps
from train.optimization.parameter_groups import freeze, group_parameters
from train.optimization.trainer import AlignedSFTTrainer
from train.settings import AUTO, OptimizationArguments
from train.step_plan import plan_step, recomputed


METHOD = "norm-gwc"


@dataclass(frozen=True)
class Side:
    """Who trains what, and where.

    Args:
        who: "stock", "ours", or "processor": ours through the model's processor.
        folder: with the rows of `make_rows`; receives what training writes.
    """

    who: str
    stage: int
    shape: Shape
    folder: Path
    device: str

    @property
    def warm_up(self) -> int:
        """Steps that are not measured."""
        return int(self.shape.micro_batch is None)

    @property
    def checkpointing(self) -> bool:
        """Whether every layer is computed again: by stock, in stage 2 on a GPU."""
        return self.who == "stock" and self.stage == 2 and self.device == "cuda"


class Clock(TrainerCallback):
    """Seconds of an epoch after its first steps."""

    seconds: float

    def __init__(self, warm_up: int):
        self.warm_up = warm_up

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.start = _now()

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.warm_up:
            self.start = _now()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.seconds = _now() - self.start


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(side: Side, rows: list[int | None]) -> list[dict[str, Any]]:
    """Train one epoch with each of these numbers of rows in a micro-batch; None: by tokens.

    Returns:
        The figures of each; of one that the device has no memory for, only its `micro_batch`.
    """
    ours = side.who != "stock"
    product = matrix_product(side.device)
    model = make_model(side.shape, METHOD, drop_unused=ours, device=side.device)
    groups = group_parameters(model, RATES[side.stage], FROZEN[side.stage])
    freeze(model, groups, torch.bfloat16 if ours and side.device == "cuda" else torch.float32)
    if ours and side.device == "cuda":  # as a stage does there
        sys.stderr.write(compile_layers(model, torch.device(side.device)) + "\n")
    figures = []
    for micro_batch in rows:
        taken: dict[str, Any] = {"micro_batch": micro_batch}
        try:
            taken |= _train(side, micro_batch, model, groups)
        except torch.OutOfMemoryError:
            if ours:
                raise
        if "tflops" in taken:
            taken["matrix_product_tflops"] = product
        figures.append(taken)
        vars(model).pop("forward", None)  # TRL's head and accelerate's autocast, of this training
        model.zero_grad()
        gc.collect()
        if side.device == "cuda":
            torch.cuda.empty_cache()
    return figures


def _train(side: Side, micro_batch: int | None, model: Any, groups: list) -> dict[str, Any]:
    clock = Clock(side.warm_up)
    trainer, prepared = _trainer(side, micro_batch, model, groups, clock)
    sizes = _record_sizes(trainer, side.warm_up)
    trainer.remove_callback(PrinterCallback)  # of losses, between the lines of results
    if side.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    count = {name: sum(int(size[name]) for size in sizes) for name in sizes[0]}
    return {
        "samples_per_second": count["rows"] / clock.seconds,
        "tokens_per_second": count["tokens"] / clock.seconds,
        "tflops": _operations(side, count["rows"], count["tokens"]) / clock.seconds / 1e12,
        "padding": 1 - count["tokens"] / count["padded_tokens"],
        "seconds": clock.seconds,
        "micro_batches": len(sizes),
        "checkpointing": recomputed(cast(SFTConfig, trainer.args)),  # one of so many layers; 0: none
        "tokenization_seconds": prepared,  # once before training; stock tokenizes in its collator at every step
        "tokens": count["tokens"],
        "labels": count["labels"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_memory_bytes": peak_memory(side.device),
        "loss": sum(losses) / len(losses),
    }


def _trainer(side: Side, micro_batch: int | None, model: Any, groups: list, clock: Clock) -> tuple[SFTTrainer, float]:
    """The trainer, and the seconds that it took to make tokens of the rows."""
    ours, cuda, shape, folder = side.who != "stock", side.device == "cuda", side.shape, side.folder
    processor = make_processor(shape, side.stage)
    sources = read_sources(str(folder / f"stage{side.stage}.json"), str(folder))
    arguments = SFTConfig(
        output_dir=str(folder / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=micro_batch or 1,
        gradient_accumulation_steps=shape.global_batch // (micro_batch or 1),
        learning_rate=1e-5,
        max_length=None,
        assistant_only_loss=not ours,
        use_cpu=not cuda,
        bf16=cuda,
        gradient_checkpointing=side.checkpointing,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        train_sampling_strategy="sequential" if side.warm_up else "group_by_length" if ours else "random",
        remove_unused_columns=not ours,
        dataloader_num_workers=4 if cuda else 0,
        dataloader_pin_memory=cuda,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    shared: dict[str, Any] = {"model": model, "args": arguments, "processing_class": processor, "callbacks": [clock]}
    if not ours:
        read = checked_rows(sources[0], raw_table(sources[0], str(folder / "prepared")))
        rows = [{"messages": row["messages"], "images": row["images"]} for row in read if isinstance(row, dict)]
        dataset = Dataset.from_list(rows).cast_column("images", List(Image()))
        return SFTTrainer(train_dataset=dataset, **shared), 0.0
    start = time.perf_counter()
    assert isinstance(processor.chat_template, str)
    encoder: RowTokens = LlavaTokens(
        processor.tokenizer,
        template=processor.chat_template,
        image_token_id=model.config.image_token_id,
        image_tokens=model.config.image_seq_length,
        max_length=None,
    )
    if side.who == "processor":
        encoder = FamilyTokens(processor, model.config, None)
    data = open_training_data(sources, encoder, folder / "prepared")
    row_images = RowImages(data, Quarantine(folder / "quarantine.jsonl", data.opened, 0.0), seed=0)
    prepared = time.perf_counter() - start
    collator: Any = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, row_images)
    if isinstance(encoder, FamilyTokens):
        collator = FamilyCollator(encoder, row_images)
    micro_batches = None
    if micro_batch is None:
        optimization = OptimizationArguments(shape.global_batch, RATES[side.stage], micro_batch_tokens=AUTO)
        optimization.choose_checkpointing = True
        micro_batches = plan_step(model, row_lengths(data.dataset), optimization, arguments)
    trainer = AlignedSFTTrainer(
        train_dataset=data.dataset,
        data_collator=collator,
        parameter_groups=groups,
        micro_batches=micro_batches,
        finite_steps=FiniteSteps(folder / "skipped_steps.jsonl", 0),
        **shared,
    )
    return trainer, prepared


def _record_sizes(trainer: SFTTrainer, warm_up: int) -> list[dict[str, Any]]:
    """A list that gets rows, tokens and labels of each micro-batch after the warm-up, without waiting for a GPU."""
    sizes: list[dict[str, Any]] = []
    step = trainer.training_step

    def training_step(model: Any, inputs: Any, *rest: Any) -> Any:
        if trainer.state.global_step >= warm_up:
            rows, length = inputs["input_ids"].shape
            tokens, labels = inputs["attention_mask"].sum(), (inputs["labels"][:, 1:] != IGNORE_INDEX).sum()
            sizes.append({"rows": rows, "padded_tokens": rows * length, "tokens": tokens, "labels": labels})
        return step(model, inputs, *rest)

    setattr(trainer, "training_step", training_step)  # noqa: B010
    return sizes


def _operations(side: Side, rows: int, tokens: int) -> float:
    """Operations that training on these rows needs: without padding, unused layers, or what is computed again."""
    model = make_model(side.shape, METHOD, drop_unused=True, device="meta")
    freeze(model, group_parameters(model, RATES[side.stage], FROZEN[side.stage]))
    return flops(model, Batch(rows, round(tokens / rows), rows))


def matrix_product(device: str) -> float:
    """TFLOP/s of one large matrix product, in the precision in which `device` trains."""
    size, dtype, scale = (8192, torch.bfloat16, 5) if device == "cuda" else (1024, torch.float32, 1)
    a, b = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    for repeats in (10 * scale, 20 * scale):  # the first warm up
        start = _now()
        for _ in range(repeats):
            torch.mm(a, b)
        seconds = _now() - start
    return repeats * 2 * size**3 / seconds / 1e12
