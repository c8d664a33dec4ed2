"""Whether a stage can run, before GPUs are rented: settings, data, template, memory and disk in one table.

python -m train.preflight --config FILE.yaml --method NAME [--stage1 FILE] [--processes 8] [--device-gb 80] [...]

It accepts every setting of `train.sft`, loads no weights, and exits with 1 and the reasons if the run cannot succeed.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, cast

import datasets
import numpy as np
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn
from transformers import AutoConfig, PreTrainedConfig, TrainerCallback
from trl import SFTConfig

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.alignment import check_family
from modeling_aligned_llava.assembly.from_backbones import joined_config, tower_configs
from modeling_aligned_llava.errors import NOT_A_TERMINAL, UserError, run_main
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.files import require_space
from train.cost import ENGINES, SPARE, Batch, count, device_memory, flops, matrix_products, memory, meta_model
from train.data.prepared import prepared_root, usable_rows
from train.data.quarantine import Entry
from train.data.row_tokens import RowTokens
from train.data.sources import raw_table, read_sources
from train.data.stage_tokens import tokens_without_model
from train.monitoring.log import PROGRESS_JSON
from train.parse import Settings, accumulation_steps, parse_with_backbones
from train.settings import DataArguments, ModelArguments, read_settings
from train.stage_folder import StageFolder
from train.start import trained_checkpoint
from train.step_plan import describe_step, one_micro_batch, plan_step, recomputed


TIMED = "--three-steps"  # the run that `_measure` starts
REACHED = {"frozen": 190.0, "trained": 100.0}  # TFLOP/s at 3B with a decoder frozen or trained, 28 November 2026
OF_PRODUCTS = 0.5  # share of the speed of matrix products that training SmolLM2-135M reaches on a CPU
SAMPLE = 1000  # rows that are checked and tokenized; `train.data prepare` does all


class Preflight:
    """The checks of one stage: rows of a table, and reasons why it cannot run."""

    def __init__(self, title: str):
        self.table = Table("", title, title_justify="left")
        self.reasons: list[str] = []

    def row(self, name: str, text: str) -> None:
        """Add a fact."""
        self.table.add_row(name, escape(text))

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Turn an error of the user's into a reason, and go on."""
        try:
            yield
        except UserError as error:
            self.fail(name, str(error))

    def fail(self, name: str, reason: str) -> None:
        """Add a reason why the run cannot succeed."""
        self.reasons.append(reason)
        self.table.add_row(name, f"[red]no:[/red] {escape(reason)}")


def preflight(argv: list[str], console: Console) -> bool:
    """Check the stage that the command line describes and print the table; whether it can run.

    Raises:
        UserError: the settings cannot be read at all.
    """
    parser = argparse.ArgumentParser(prog="python -m train.preflight", allow_abbrev=False, description=__doc__)
    parser.add_argument("--stage1", type=Path, help="recipe of stage 1, while stage 2 has no checkpoint to start from")
    parser.add_argument("--processes", type=int, default=max(1, torch.cuda.device_count()), help="number of GPUs")
    parser.add_argument("--engine", choices=ENGINES, help="how they share the work (default: one, ddp or fsdp2)")
    parser.add_argument(
        "--device-gb", type=float, default=device_memory() / 1e9, help="memory of a GPU (default: of this one)"
    )
    parser.add_argument("--side-by-side", type=int, default=1, help="trainings that share it (default: 1)")
    parser.add_argument(
        "--measure",
        action=argparse.BooleanOptionalAction,
        default=torch.cuda.is_available(),
        help="time two steps of a run, started as $LAUNCH says (default: where there is a GPU; not with --stage1)",
    )
    ours, theirs = parser.parse_known_args(argv)
    ours.device_gb /= ours.side_by_side
    given = read_settings(theirs)
    settings, backbones = parse_with_backbones(given, ours.stage1)
    training, batch_size = settings.training, settings.optimization.global_batch_size
    if backbones is None or _holds_model(settings.model.model_name_or_path):
        backbones = settings.model
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    checks = Preflight(f"{settings.model.method}: {training.output_dir}")
    with checks.step("output folder"):
        folder = StageFolder(str(training.output_dir))
        folder.check_settings(given)
        if not os.access(parent := _existing(folder.path), os.W_OK):
            raise UserError(f"{parent} is not writable")
    encoder = rows = None
    with checks.step("template"):
        encoder = tokens_without_model(settings, None if backbones is settings.model else backbones)
    if encoder is not None:
        with checks.step("data"):
            rows = _check_data(checks, settings.data, batch_size, encoder)
    if backbones.model_name_or_path is None or _holds_model(backbones.model_name_or_path):
        with checks.step("memory"):
            _check_cost(checks, settings, backbones, rows, ours)
    if ours.measure and ours.stage1 is None and not checks.reasons:
        with checks.step("measured"):
            _measure(checks, theirs, training, rows[0] if rows else 0, batch_size)
    console.print(checks.table)
    for reason in checks.reasons:
        console.print(f"cannot run: {reason}", soft_wrap=True, markup=False)
    return not checks.reasons


def _check_data(
    checks: Preflight, data: DataArguments, global_batch_size: int, encoder: RowTokens
) -> tuple[int, list[dict]]:
    """The number of all rows, and the usable rows of a sample."""
    total = 0
    good: list[dict] = []
    entries: list[Entry] = []
    for source in read_sources(data.data_path, data.image_folder):
        raw = raw_table(source, str(prepared_root(data.data_cache)))
        total += round(len(raw) * source.weight)
        sample = raw.with_format("arrow")[: min(SAMPLE, len(raw))]
        for row in usable_rows(source, encoder, sample, 0):
            if isinstance(row, Entry):
                entries.append(row)
            else:
                good.append(row)
    damaged = [entry for entry in entries if not entry.filtered]
    seen = len(good) + len(entries)
    checks.row("rows", f"{total:,}; of the first {seen:,}: {len(good):,} usable, {len(damaged)} damaged")
    if len(damaged) > data.bad_rows_limit * seen:
        raise UserError(
            f"{len(damaged)} of the first {seen} rows are damaged, more than bad_rows_limit: {damaged[0].reason}, "
            f"row {damaged[0].row} of {damaged[0].file} {damaged[0].detail}".rstrip()
        )
    if not good:
        raise UserError(f"none of the first {seen} rows can be used: {entries[0].reason} ({entries[0].detail})")
    if total < global_batch_size:
        raise UserError(f"{total} rows are fewer than one global batch of {global_batch_size}")
    stored = {name: [good[0][name]] for name in encoder.columns}
    row = {name: values[0] for name, values in encoder.expanded(stored).items()}
    answer = next(text for kind, text in encoder.pieces(row) if kind == "supervised")
    checks.row("template", f"an answer ends with {answer[-12:]!r}")
    return total, good


def _check_cost(
    checks: Preflight,
    settings: Settings,
    backbones: ModelArguments,
    rows: tuple[int, list[dict]] | None,
    ours: argparse.Namespace,
) -> None:
    training, optimization = settings.training, settings.optimization
    lora, batch_size = cast("dict | None", settings.model.lora), optimization.global_batch_size
    config = _model_config(settings.model.config_fields, backbones)
    model = meta_model(config, optimization.rates, optimization.frozen, bool(training.bf16), lora)
    if settings.model.attn_implementation == "eager":
        model.get_decoder().set_attn_implementation("eager")
    engine = ours.engine or ("one" if ours.processes == 1 else "fsdp2" if count(model) > 1e9 else "ddp")
    lengths = np.array([row["length"] for row in rows[1]] if rows else [training.max_length or 2048])
    longest, share = int(lengths.max()), {"engine": engine, "processes": ours.processes}
    sample = np.resize(lengths, max(len(lengths), batch_size))
    micro_batches = plan_step(model, sample, optimization, training, **share, device_bytes=ours.device_gb * 1e9)
    if micro_batches is None:
        micro = training.per_device_train_batch_size
        steps = accumulation_steps(batch_size, micro, ours.processes)
        checks.row("step", f"{batch_size} = {micro} rows x {ours.processes} processes x {steps}")
        batch = Batch(rows=micro, length=longest, images=micro)
    else:
        checks.row("step", describe_step(micro_batches, batch_size, training))
        batch = one_micro_batch(model, micro_batches.budget, longest)
    again = recomputed(training)
    need = memory(model, batch, **share, bf16=bool(training.bf16), checkpointing=again)
    parts = f"weights {need.weights / 1e9:.1f}, gradients {need.gradients / 1e9:.1f}, Adam {need.optimizer / 1e9:.1f}"
    parts += f", copies {need.copies / 1e9:.1f}, activations {need.activations / 1e9:.1f}"
    parts += f" for {batch.rows * batch.length:.0f} tokens"
    checks.row("memory per device", f"{need.total / 1e9:.1f} GB of {ours.device_gb:.0f} ({engine}): {parts}")
    if need.total + SPARE > ours.device_gb * 1e9:
        checks.fail(
            "memory",
            f"{need.total / 1e9:.1f} GB and {SPARE / 1e9:.0f} GB to spare do not fit into {ours.device_gb:.0f} GB: "
            "take more GPUs with fsdp2, a smaller micro-batch, or --gradient_checkpointing true",
        )
    if rows and isinstance(model, AlignedLlavaForConditionalGeneration):
        a_row = Batch(rows=1, length=round(lengths.mean()), images=1)
        operations = _steps(training, rows[0], batch_size) * batch_size * flops(model, a_row, again)
        reached = REACHED["frozen" if count(model) < 1e9 else "trained"]
        hours = f"{operations / reached / 3.6e15:,.2g} GPU-hours at {reached:.0f} TFLOP/s"
        estimate = f"{hours}, as one H200 reached without micro_batch_tokens (docs/train.md)"
        if not torch.cuda.is_available():
            here = operations / matrix_products(torch.bfloat16 if training.bf16 else torch.float32) / OF_PRODUCTS
            estimate = f"{here / 3600:,.2g} hours on this CPU if nothing else runs; {estimate}"
        checks.row("estimate", estimate)
    _check_disk(checks, training, model)


def _check_disk(checks: Preflight, training: SFTConfig, model: nn.Module) -> None:
    everything = sum(parameter.numel() for parameter in model.parameters())
    checkpoint = 4 * everything + 8 * count(model)
    kept = (training.save_total_limit or 1) + 1
    need = kept * checkpoint + 4 * everything
    what = f"{kept} checkpoints of {checkpoint / 1e9:,.1f} GB and the model"
    with checks.step("disk"):
        checks.row("disk", require_space(_existing(Path(str(training.output_dir))), need, what))


def _steps(training: SFTConfig, rows: int, global_batch_size: int) -> int:
    return (
        training.max_steps if training.max_steps > 0 else round(rows * training.num_train_epochs / global_batch_size)
    )


def _measure(checks: Preflight, argv: list[str], training: SFTConfig, rows: int, global_batch_size: int) -> None:
    """Time the second and third step of a run of the same settings, which ends then, without saving.

    Raises:
        UserError: the run fails.
    """
    launch = shlex.split(os.environ.get("LAUNCH", "")) or [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        short = {"output_dir": folder, "max_steps": 3, "logging_steps": 1, "save_strategy": "no", "probe_rows": 0}
        options = [word for name, value in short.items() for word in (f"--{name}", str(value))]
        command = [*launch, "-m", "train.preflight", TIMED, *argv, *options]
        ends, lines = [], []
        told = os.environ | NOT_A_TERMINAL | {PROGRESS_JSON: "1"}
        with subprocess.Popen(  # noqa: S603
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=told
        ) as process:
            for line in cast("IO[str]", process.stdout):
                lines.append(line.strip())
                if line.startswith('{"step"'):
                    ends.append(time.perf_counter())
        if len(ends) < 3:
            raise UserError(f"a run of three steps fails: {next((text for text in lines[::-1] if text), 'no output')}")
        logged = json.loads((Path(folder) / "log.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    seconds, steps = (ends[2] - ends[0]) / 2, _steps(training, rows, global_batch_size)
    memory = f", peak memory {logged['peak_memory_bytes'] / 1e9:.1f} GB" if "peak_memory_bytes" in logged else ""
    checks.row("measured", f"{seconds:.2f} s a step, {seconds * steps / 3600:.1f} hours for {steps:,} steps{memory}")


def _model_config(fields: dict, backbones: ModelArguments) -> PreTrainedConfig:
    """The configuration of the model: that of the checkpoint, or what assembly will make of the backbones."""
    if backbones.model_name_or_path is not None:
        config = load_part(AutoConfig, trained_checkpoint(backbones.model_name_or_path))
        if config.model_type != AlignedLlavaConfig.model_type:
            check_family(config.model_type)
        return config
    _, vision = tower_configs(str(backbones.vision_tower))
    text = load_part(AutoConfig, str(backbones.language_model), "language model")
    measured = dict.fromkeys(("text_norm", "stream_norm"), 1.0)
    return joined_config(vision, text, {**fields, **measured})


def _holds_model(folder: str | None) -> bool:
    """Whether a model is in the folder; while stage 1 trains, only its checkpoints are."""
    return folder is not None and (Path(folder) / "config.json").is_file()


def _existing(folder: Path) -> Path:
    """The folder or, if it has yet to be made, the first one above it that exists."""
    return next(path for path in (folder, *folder.absolute().parents) if path.exists())


class _EndAfterThree(TrainerCallback):
    """End the process once its third step has been logged."""

    def on_log(self, args, state, control, **kwargs):
        if state.global_step == 3:
            sys.exit()


def main() -> None:
    if sys.argv[1:2] == [TIMED]:
        from train.stage import run_stage  # here: it imports the trainer

        run_stage(sys.argv[2:], lambda model: [_EndAfterThree()])
    elif not preflight(sys.argv[1:], Console()):
        sys.exit(1)


if __name__ == "__main__":
    run_main(main)
