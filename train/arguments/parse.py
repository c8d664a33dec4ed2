"""The settings of a stage, from one YAML file and the command line: ours in four groups, and TRL's `SFTConfig`."""

import argparse
import os
import warnings
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from trl import SFTConfig, TrlParser

from modeling_aligned_llava.errors import UserError
from train.arguments.groups import (
    DataArguments,
    ModelArguments,
    MonitoringArguments,
    OptimizationArguments,
)
from train.arguments.sft_settings import REFUSED, reject_ignored
from train.stage_folder import AUTO, StageFolder, output_dir, peek_settings


class TrainingArguments(SFTConfig):
    """TRL's `SFTConfig`, shown as a group of its own by `--help`."""

    _argument_group_name = "training (TRL's SFTConfig)"


@dataclass
class RunArguments:
    """The settings of a stage that TRL does not know."""

    model: ModelArguments
    data: DataArguments
    optimization: OptimizationArguments
    monitoring: MonitoringArguments

    def check_numbers(self) -> None:
        """Check that whole numbers are such: in a YAML file, they may be anything.

        Raises:
            UserError: one is not.
        """
        for group in (self.data, self.optimization, self.monitoring):
            for each in fields(group):
                value = getattr(group, each.name)
                if each.type is int and not isinstance(value, int):
                    raise UserError(f"{each.name} must be a whole number, not {value!r}")

    def fill_in_method(self) -> None:
        """Replace `{method}` by the name of the method in every path."""
        for group in (self.model, self.data):
            for each in fields(group):
                value = getattr(group, each.name)
                if isinstance(value, str):
                    setattr(group, each.name, value.replace("{method}", self.model.method))


def parse_arguments(argv: list[str]) -> tuple[RunArguments, SFTConfig]:
    """Parse `--config FILE.yaml --method NAME [--any-setting VALUE ...]`; the command line wins over the file.

    Raises:
        UserError: the file is missing, or a setting is unknown, wrong or does not fit another one.
    """
    warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)  # TRL sets it itself
    given = peek_settings(argv) or {}
    reject_ignored(given)
    argv = _with_precision(argv, given)
    if not torch.accelerator.is_available():
        argv = [*argv, "--use_cpu", "true"]  # without it, several processes would not form a group
    types: Any = [*(each.type for each in fields(RunArguments)), TrainingArguments]
    parser = TrlParser(
        types,
        prog="python -m train.sft",
        usage="%(prog)s --config FILE.yaml --method NAME [--SETTING VALUE ...]",
        description="Trains one stage of one method. Every setting below can be given in the YAML file or on the "
        "command line; the command line wins.",
    )
    for action in parser._actions:
        if action.dest in REFUSED:
            action.help = argparse.SUPPRESS
    try:
        *groups, training = parser.parse_args_and_config(argv)
        run = RunArguments(*groups)
        run.check_numbers()
        run.fill_in_method()
        _check(run, training)
        _complete(run, training)
    except FileNotFoundError as error:
        raise UserError(f"--config: there is no file {error.filename}") from error
    except UserError:
        raise
    except Exception as error:  # a setting of the wrong kind makes the parser and SFTConfig raise anything
        kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
        raise UserError(f"settings: {kind}{' '.join(str(error).split())}") from error
    return run, training


def parse_with_backbones(
    argv: list[str], stage1: Path | None
) -> tuple[RunArguments, SFTConfig, ModelArguments | None]:
    """`parse_arguments`, and the backbones of stage 1's recipe, for what is done before stage 2 has a checkpoint.

    Args:
        argv: may hold `--vision_tower` and `--language_model`, which then replace those of the recipe `stage1`.
        stage1: None: there is no need for backbones.

    Raises:
        UserError: as `parse_arguments`.
    """
    if stage1 is None:
        return *parse_arguments(argv), None
    towers = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    names = ("--vision_tower", "--language_model")
    for name in names:
        towers.add_argument(name, dest=name)
    given, rest = towers.parse_known_args(argv)
    run, training = parse_arguments(rest)
    first = ["--config", str(stage1), "--method", run.model.method, "--bf16", "false"]
    first += [word for name in names if (value := getattr(given, name)) for word in (name, value)]
    return run, training, parse_arguments(first)[0].model


def _with_precision(argv: list[str], settings: dict[str, Any]) -> list[str]:
    """The words with a choice in place of `bf16: auto`: what the folder was started with, else whether it is fast."""
    if settings.get("bf16") != AUTO:
        return argv
    started = StageFolder(output_dir(settings)).recorded_settings().get("bf16")
    chosen = started or str(bfloat16_is_fast())
    given = [chosen if argv[i - 1 : i] == ["--bf16"] else word for i, word in enumerate(argv)]
    return [*(word for word in given if word != f"--bf16={AUTO}"), "--bf16", chosen]


def bfloat16_is_fast() -> bool:
    """Whether training is faster in bfloat16 than in float32: on a GPU, a CPU with AMX, and an AMD with AVX512-BF16.

    An Intel with AVX512-BF16 alone was slower in bfloat16.
    """
    if torch.accelerator.is_available():
        return True
    cpu = torch.cpu.get_capabilities()
    return cpu.get("amx_bf16", False) or (cpu.get("avx512_bf16", False) and "AMD" in cpu.get("cpu_name", ""))


def _check(run: RunArguments, training: SFTConfig) -> None:
    if (training.eval_strategy != "no") != (run.monitoring.eval_rows > 0):
        raise UserError("eval_rows and eval_strategy (steps, with eval_steps) go together: give both or neither")
    if training.save_strategy == "best":
        raise UserError("save_strategy: best would leave nothing to continue from; use steps, epoch or no")
    if run.optimization.clip_by_part and not training.max_grad_norm:
        raise UserError("clip_by_part needs max_grad_norm, the limit of each part: with 0 nothing is clipped")
    if run.optimization.clip_by_part and training.deepspeed_plugin is not None:
        raise UserError("clip_by_part: DeepSpeed clips the whole gradient by itself; use DDP or FSDP2, or drop it")
    if run.optimization.max_skipped_steps and training.deepspeed_plugin is not None:
        raise UserError("max_skipped_steps: DeepSpeed takes a step before it can be checked; use DDP or FSDP2, or 0")
    if run.model.lora and training.deepspeed_plugin is not None and training.deepspeed_plugin.zero_stage == 3:
        raise UserError("lora: ZeRO-3 shards the weights that adapters are merged into; use DDP, FSDP2 or ZeRO-2")
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != training.world_size:
        raise UserError(f"{started} processes were started, but the trainer sees {training.world_size}")


def _complete(run: RunArguments, training: SFTConfig) -> None:
    """Set what follows from our settings in TRL's."""
    training.output_dir = str(training.output_dir).replace("{method}", run.model.method)
    training.learning_rate = max(run.optimization.rates.values())  # for the log; the optimizer has a rate per group
    training.gradient_accumulation_steps = accumulation_steps(
        run.optimization.global_batch_size, training.per_device_train_batch_size, training.world_size
    )
    if run.model.save_dtype is None:
        run.model.save_dtype = "bfloat16" if training.bf16 else "float32"
    training.remove_unused_columns = False  # the collator needs the image paths
    training.disable_tqdm = True  # we show our own progress bar
    config: Any = training.accelerator_config
    if uses_fsdp(training):
        # gradients stay sharded between the micro-batches of a step; whole ones need 4 bytes per parameter and GPU
        config.gradient_accumulation_kwargs = {**(config.gradient_accumulation_kwargs or {}), "sync_each_batch": True}


def uses_fsdp(training: SFTConfig) -> bool:
    """Whether the weights will be sharded with FSDP, by a setting or by `accelerate launch`."""
    return bool(training.fsdp) or os.environ.get("ACCELERATE_USE_FSDP") == "true"


def accumulation_steps(global_batch_size: int, per_device: int, world_size: int) -> int:
    """Number of micro-batches per step, such that `per_device * world_size * steps` is the global batch size.

    Raises:
        UserError: the global batch size is not divisible.
    """
    if per_device < 1:
        raise UserError(f"per_device_train_batch_size must be above 0, not {per_device}")
    steps, rest = divmod(global_batch_size, per_device * world_size)
    if rest or steps < 1:
        raise UserError(
            f"global_batch_size {global_batch_size} is not a multiple of "
            f"per_device_train_batch_size {per_device} x {world_size} processes"
        )
    return steps
