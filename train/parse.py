"""The settings of a stage, checked: ours in four groups, and TRL's `SFTConfig`."""

import os
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from transformers.integrations import get_reporting_integration_callbacks
from trl import SFTConfig, TrlParser

from modeling_aligned_llava.errors import UserError
from train.refused import REFUSED
from train.settings import (
    AUTO,
    GROUPS,
    DataArguments,
    ModelArguments,
    MonitoringArguments,
    OptimizationArguments,
    output_dir,
    read_settings,
    with_method,
)
from train.stage_folder import StageFolder


class Settings(NamedTuple):
    """The settings of a stage."""

    model: ModelArguments
    data: DataArguments
    optimization: OptimizationArguments
    monitoring: MonitoringArguments
    training: SFTConfig


class _Parser(TrlParser):
    """Converts settings to the types of their fields; a wrong one is one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"settings: {message}")


def parse_settings(given: dict[str, Any]) -> Settings:
    """Check and complete settings as they are written (`read_settings`).

    Raises:
        UserError: a setting is unknown, wrong or does not fit another one.
    """
    warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)  # TRL sets it itself
    given = with_method(given)
    if given.get("bf16") == AUTO:  # what the folder was started with, else whether it is fast
        given["bf16"] = StageFolder(output_dir(given)).recorded_settings().get("bf16") or str(bfloat16_is_fast())
    if not torch.accelerator.is_available():
        given["use_cpu"] = True  # without it, several processes would not form a group
    os.environ["ACCELERATE_MIXED_PRECISION"] = "no"  # of a configuration of accelerate; `bf16` decides
    chosen_later = str(given.get("gradient_checkpointing")) == AUTO
    if chosen_later:
        given["gradient_checkpointing"] = "false"  # until the model is there (`train.step_plan`)
    types: Any = [*GROUPS, SFTConfig]
    parser = _Parser(types, add_help=False)
    known = {action.dest for action in parser._actions}
    for name in [name for name in given if name not in known and name.removeprefix("no_") in known]:
        given[name.removeprefix("no_")] = given.pop(name) != "true"
    if refused := [name for name in given if name in REFUSED]:
        raise UserError(f"{refused[0]}: {REFUSED[refused[0]]}")
    if unknown := [name for name in given if name not in known]:
        raise UserError(f"settings: there is no setting {unknown[0]}")
    parser.set_defaults_with_config(**given)
    try:
        settings = Settings(*parser.parse_args_into_dataclasses(args=[]))
        settings.optimization.choose_checkpointing = chosen_later
        if settings.optimization.by_tokens:
            if float(given.get("per_device_train_batch_size") or 0):
                raise UserError("micro_batch_tokens and per_device_train_batch_size both cut a step: set one to 0")
            settings.training.per_device_train_batch_size = 1  # read nowhere, but 0 is nothing
        for callback in get_reporting_integration_callbacks(settings.training.report_to):
            callback()  # says which package is missing
        _check(settings)
        _complete(settings)
    except UserError:
        raise
    except Exception as error:  # a setting of the wrong kind makes the parser and SFTConfig raise anything
        kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
        raise UserError(f"settings: {kind}{' '.join(str(error).split())}") from error
    return settings


def parse_with_backbones(given: dict[str, Any], stage1: Path | None) -> tuple[Settings, ModelArguments | None]:
    """`parse_settings`, and the backbones of stage 1's recipe, for what is done before stage 2 has a checkpoint.

    Args:
        given: may hold `vision_tower` and `language_model`, which then replace those of the recipe `stage1`.
        stage1: None: there is no need for backbones.

    Raises:
        UserError: as `parse_settings`.
    """
    if stage1 is None:
        return parse_settings(given), None
    towers = {name: given[name] for name in ("vision_tower", "language_model") if name in given}
    settings = parse_settings({name: value for name, value in given.items() if name not in towers})
    first = read_settings(["--config", str(stage1)]) | towers | {"method": settings.model.method, "bf16": False}
    return settings, parse_settings(first).model


def bfloat16_is_fast() -> bool:
    """Whether training is faster in bfloat16 than in float32: on a GPU, a CPU with AMX, and an AMD with AVX512-BF16.

    An Intel with AVX512-BF16 alone was slower in bfloat16.
    """
    if torch.accelerator.is_available():
        return True
    cpu = torch.cpu.get_capabilities()
    return cpu.get("amx_bf16", False) or (cpu.get("avx512_bf16", False) and "AMD" in cpu.get("cpu_name", ""))


def _check(settings: Settings) -> None:
    training, optimization = settings.training, settings.optimization
    for group in (settings.data, optimization, settings.monitoring):
        for option in fields(group):  # in a YAML file, a whole number may be anything
            value = getattr(group, option.name)
            if option.type is int and not isinstance(value, int):
                raise UserError(f"{option.name} must be a whole number, not {value!r}")
    if (training.eval_strategy != "no") != (settings.monitoring.eval_rows > 0):
        raise UserError("eval_rows and eval_strategy (steps, with eval_steps) go together: give both or neither")
    if training.lr_scheduler_type == "reduce_lr_on_plateau":
        raise UserError(
            "lr_scheduler_type: reduce_lr_on_plateau would keep the best weights, not the last: use another"
        )
    if training.save_strategy == "best":
        raise UserError("save_strategy: best would leave nothing to continue from; use steps, epoch or no")
    if optimization.by_tokens and training.train_sampling_strategy == "batch_rebalance":
        raise UserError("train_sampling_strategy: batch_rebalance does what micro_batch_tokens does: drop one")
    if training.torch_compile and settings.model.compile_layers == "true":
        raise UserError("torch_compile compiles the whole model, compile_layers each layer: drop one")
    if optimization.clip_by_part and not training.max_grad_norm:
        raise UserError("clip_by_part needs max_grad_norm, the limit of each part: with 0 nothing is clipped")
    if optimization.clip_by_part and training.deepspeed_plugin is not None:
        raise UserError("clip_by_part: DeepSpeed clips the whole gradient by itself; use DDP or FSDP2, or drop it")
    if optimization.max_skipped_steps and training.deepspeed_plugin is not None:
        raise UserError("max_skipped_steps: DeepSpeed takes a step before it can be checked; use DDP or FSDP2, or 0")
    if settings.model.lora and training.deepspeed_plugin is not None and training.deepspeed_plugin.zero_stage == 3:
        raise UserError("lora: ZeRO-3 shards the weights that adapters are merged into; use DDP, FSDP2 or ZeRO-2")
    for block in {"optimizer", "scheduler"} & getattr(training.deepspeed_plugin, "deepspeed_config", {}).keys():
        raise UserError(f"deepspeed: its {block} would have one rate for all parameters: remove it from the file")
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != training.world_size:
        raise UserError(f"{started} processes were started, but the trainer sees {training.world_size}")


def _complete(settings: Settings) -> None:
    """Set what follows from our settings in TRL's."""
    training, optimization = settings.training, settings.optimization
    training.learning_rate = max(optimization.rates.values())  # for the log; the optimizer has a rate per group
    if not optimization.by_tokens:  # else it follows from the lengths of the rows
        training.gradient_accumulation_steps = accumulation_steps(
            optimization.global_batch_size, training.per_device_train_batch_size, training.world_size
        )
    if settings.model.save_dtype is None:
        settings.model.save_dtype = "bfloat16" if training.bf16 else "float32"
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
