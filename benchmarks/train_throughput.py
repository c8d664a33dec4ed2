"""Samples per second of both training stages, ours against TRL's stock `SFTTrainer`: same model, rows, global batch.

    python -m benchmarks.train_throughput --out benchmarks/results/train_throughput.json

Every measurement runs in its own process, so that peak memory is its own. Stock and ours take turns, and each pair
gives a ratio. Stock is `SFTTrainer` with its own vision collator and LLaVA's whole vision tower. With `--processor`
ours then runs again as it trains other families, through the model's own processor.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl import SFTConfig, SFTTrainer

from benchmarks.record import environment, write
from benchmarks.training_worlds import FROZEN, LENGTHS, RATES, SHAPES, Shape, make_model, make_processor, make_rows
from train.data.family_tokens import FamilyCollator, FamilyTokens
from train.data.images import RowImages
from train.data.llava_tokens import ImageTextCollator, LlavaTokens
from train.data.prepared import checked_rows, open_training_data
from train.data.quarantine import Quarantine
from train.data.row_tokens import IGNORE_INDEX, RowTokens
from train.data.sources import raw_table, read_sources
from train.optimization.finite_steps import FiniteSteps
from train.optimization.parameter_groups import freeze, group_parameters
from train.optimization.trainer import AlignedSFTTrainer


WHO = ("stock", "ours", "processor")
TARGETS = {"stage1": 2.0, "stage2": 1.5}  # on the CPU, at the 40 M-parameter shape


class Clock(TrainerCallback):
    """Seconds of the epoch."""

    seconds: float

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.start = _now()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.seconds = _now() - self.start


def _now() -> float:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter()


def measure(who: str, stage: int, shape: Shape, folder: Path, device: str) -> dict[str, Any]:
    """Train one epoch in this process. `who` is one of `WHO`."""
    ours = who != "stock"
    processor = make_processor(shape, stage)
    model = make_model(shape, "norm-gwc", drop_unused=ours, device=device)
    groups = group_parameters(model, RATES[stage], FROZEN[stage])
    freeze(model, groups)
    sources = read_sources(str(folder / f"stage{stage}.json"), str(folder))
    rows = [
        row
        for row in checked_rows(sources[0], raw_table(sources[0], str(folder / "prepared")))
        if isinstance(row, dict)
    ]
    arguments = SFTConfig(
        output_dir=str(folder / "out"),
        num_train_epochs=1,
        per_device_train_batch_size=shape.micro_batch,
        gradient_accumulation_steps=shape.global_batch // shape.micro_batch,
        learning_rate=1e-5,
        max_length=None,
        assistant_only_loss=not ours,
        use_cpu=device == "cpu",
        bf16=device == "cuda",
        gradient_checkpointing=False,
        train_sampling_strategy="group_by_length" if ours else "random",
        remove_unused_columns=not ours,
        dataloader_num_workers=4 if device == "cuda" else 0,
        dataloader_pin_memory=device == "cuda",
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    clock = Clock()
    shared: dict[str, Any] = {"model": model, "args": arguments, "processing_class": processor, "callbacks": [clock]}
    start = time.perf_counter()
    if ours:
        assert isinstance(processor.chat_template, str)
        encoder: RowTokens = LlavaTokens(
            processor.tokenizer,
            template=processor.chat_template,
            image_token_id=model.config.image_token_id,
            image_tokens=model.config.image_seq_length,
            max_length=None,
        )
        if who == "processor":
            encoder = FamilyTokens(processor, model.config, None)
        data = open_training_data(sources, encoder, folder / "prepared")
        row_images = RowImages(data, Quarantine(folder / "quarantine.jsonl", data.opened, 0.0), seed=0)
        prepared = time.perf_counter() - start
        pad = processor.tokenizer.pad_token_id
        collator: Any = ImageTextCollator(processor.image_processor, pad, row_images)
        if isinstance(encoder, FamilyTokens):
            collator = FamilyCollator(encoder, row_images)
        trainer: SFTTrainer = AlignedSFTTrainer(
            train_dataset=data.dataset,
            data_collator=collator,
            parameter_groups=groups,
            finite_steps=FiniteSteps(folder / "skipped_steps.jsonl", 0),
            **shared,
        )
    else:
        seen = [{"messages": row["messages"], "images": row["images"]} for row in rows]
        dataset = Dataset.from_list(seen).cast_column("images", _images())
        prepared = 0.0
        trainer = SFTTrainer(train_dataset=dataset, **shared)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    trainer.train()
    peak = _peak_memory(device)
    logged = [line for line in trainer.state.log_history if "loss" in line]
    seconds = clock.seconds
    tokens, labels = logged[-1]["num_tokens"], _labels(trainer)
    return {
        "samples_per_second": len(rows) / seconds,
        "tokens_per_second": tokens / seconds,
        "seconds": seconds,
        "tokenization_seconds": prepared,  # once before training; stock tokenizes in its collator at every step
        "tokens": tokens,
        "labels": labels,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "peak_memory_bytes": peak,
        "loss": sum(line["loss"] for line in logged) / len(logged),
    }


def _images():
    from datasets import Image, List

    return List(Image())


def _labels(trainer: SFTTrainer) -> int:
    """Number of supervised tokens in an epoch, to check that both learn from the same tokens."""
    rows = trainer.train_dataset
    assert isinstance(rows, Dataset)
    collate = trainer.data_collator
    return sum(int((collate([rows[i]])["labels"][:, 1:] != IGNORE_INDEX).sum()) for i in range(len(rows)))


def _peak_memory(device: str) -> int:
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def child(who: str, stage: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run `measure` in its own process.

    Raises:
        SystemExit: it fails.
    """
    command = [sys.executable, "-m", "benchmarks.train_throughput", "--child", who, "--stages", str(stage)]
    command += ["--shape", args.shape, "--device", args.device, "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **_quiet()})  # noqa: S603
    if done.returncode:
        raise SystemExit(f"error: stage {stage}, {who}: {(done.stderr.strip() or 'no output').splitlines()[-1]}")
    measured = json.loads(done.stdout.strip().splitlines()[-1])
    sys.stderr.write(f"stage {stage}, {who}: {measured['samples_per_second']:.3f} samples/s\n")
    return measured


def _quiet() -> dict[str, str]:
    return {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "PYTHONWARNINGS": "ignore"}


def compare(stage: int, args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run `rounds` pairs of stock and ours, then ours through the processor if asked for."""
    pairs = []
    for turn in range(args.rounds):
        order = ("stock", "ours") if turn % 2 == 0 else ("ours", "stock")
        pair = {who: child(who, stage, args, folder) for who in order}
        assert pair["stock"]["labels"] == pair["ours"]["labels"], "stock and ours must learn from the same tokens"
        pairs.append(pair)
    summary = {
        "ratio": statistics.median(p["ours"]["samples_per_second"] / p["stock"]["samples_per_second"] for p in pairs),
        "memory_ratio": statistics.median(
            p["ours"]["peak_memory_bytes"] / p["stock"]["peak_memory_bytes"] for p in pairs
        ),
        "pairs": pairs,
    }
    if args.processor:
        run = child("processor", stage, args, folder)
        ours = statistics.median(pair["ours"]["samples_per_second"] for pair in pairs)
        summary["processor"] = {**run, "over_ours": run["samples_per_second"] / ours}
    return summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.train_throughput", description=__doc__)
    parser.add_argument("--out", type=Path, help="JSON file to write")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="40m")
    parser.add_argument("--stages", type=int, nargs="+", choices=[1, 2], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3, help="pairs of stock and ours")
    parser.add_argument("--processor", action="store_true", help="ours through the model's processor too")
    parser.add_argument("--child", choices=WHO, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    shape = SHAPES[args.shape]
    if args.child:
        print(json.dumps(measure(args.child, args.stages[0], shape, args.folder, args.device)))  # noqa: T201
        return
    stages: dict[str, Any] = {}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        for stage in args.stages:
            make_rows(shape, stage, Path(name) / str(stage))
            stages[f"stage{stage}"] = compare(stage, args, Path(name) / str(stage))
    base = environment()
    result = {
        "benchmark": "train_throughput",
        "ratios": {name: stage["ratio"] for name, stage in stages.items()},
        "memory_ratios": {name: stage["memory_ratio"] for name, stage in stages.items()},
        **({"targets": TARGETS} if args.shape == "40m" else {}),
        "shape": {
            "name": args.shape,
            "device": args.device,
            "text": shape.text,
            "vision": shape.vision,
            "global_batch": shape.global_batch,
            "micro_batch": shape.micro_batch,
            "rows": shape.global_batch * shape.steps,
            "lognormal_words": LENGTHS,
        },
        "stages": stages,
        "total_seconds": time.perf_counter() - start,
        **base,
    }
    write(result, args.out)


if __name__ == "__main__":
    main()
