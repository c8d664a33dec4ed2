"""The settings of a stage, from one YAML file and the command line: ours in five groups, and TRL's `SFTConfig`."""

import argparse
import json
import math
import os
import re
import warnings
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, cast

import torch
from trl import SFTConfig, TrlParser

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.methods import method_fields
from train.stage_folder import peek_settings


RENAMED = {"held_out": "eval_rows", "compact_head": "labelled_logits_only"}  # old name -> new name


@dataclass
class ModelArguments:
    """What is trained: a method, and the backbones (stage 1) or the checkpoint (stage 2) to start from."""

    _argument_group_name: ClassVar[str] = "model"

    method: str = field(
        metadata={
            "help": "Name of the method, as listed in `configuration/methods.yaml`. `{method}` in the value of any "
            "other setting is replaced by this name."
        }
    )
    norm_fields: dict | str | None = field(
        default=None,
        metadata={
            "help": "Fields of `AlignedLlavaConfig` that replace those of the method, such as `{target_scale: 4.0}`; "
            "the same in both stages. On the command line, a JSON object."
        },
    )
    bypassed_layers: list[int] = field(
        default_factory=list,
        metadata={
            "help": "Decoder layers that visual tokens skip: their hidden states pass unchanged, and text attends to "
            "them as before. For experiments: the saved model does not skip them, so only losses measured here count."
        },
    )
    vision_tower: str | None = field(
        default=None, metadata={"help": "Path or Hub id of the vision tower that stage 1 assembles the model from."}
    )
    language_model: str | None = field(
        default=None, metadata={"help": "Path or Hub id of the language model that stage 1 assembles the model from."}
    )
    chat_template: str | None = field(
        default=None,
        metadata={
            "help": "Name of a chat template shipped with `modeling_aligned_llava`, for the model that stage 1 "
            "assembles. If None, the language model's own template is used."
        },
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Path of the stage-1 checkpoint that stage 2 starts from. It must have been trained with the same "
            "method."
        },
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "Attention implementation of the language model, such as `sdpa`, `flash_attention_2` or "
            "`flex_attention`. If None, transformers chooses, normally `sdpa`. With `packed_rows`, the last two skip "
            "the blocks between rows."
        },
    )
    save_dtype: str | None = field(
        default=None,
        metadata={
            "help": "Precision of the final weights, `bfloat16` or `float32`; the norm is always float32. If None, "
            "bfloat16 where training computes in it (`bf16`). Checkpoints to resume from are float32 either way."
        },
    )
    lora: dict | str | None = field(
        default=None,
        metadata={
            "help": "Settings of the LoRA adapters to train in stage 2, passed to peft's `LoraConfig`. On the command "
            "line, a JSON object. If None, no adapters are added."
        },
    )

    config_fields: dict[str, Any] = field(init=False)  # those of the method, with `norm_fields`

    def __post_init__(self) -> None:
        if isinstance(self.norm_fields, str):
            self.norm_fields = _json(self.norm_fields, "norm_fields")
        self.config_fields = method_fields(self.method, cast(dict | None, self.norm_fields))
        if self.save_dtype not in (None, "bfloat16", "float32"):
            raise UserError(f"save_dtype must be bfloat16 or float32, not {self.save_dtype!r}")
        self.lora = json.loads(self.lora) if isinstance(self.lora, str) else self.lora
        from_backbones = self.vision_tower is not None and self.language_model is not None
        if from_backbones == (self.model_name_or_path is not None):
            raise UserError("give either vision_tower and language_model (stage 1) or model_name_or_path (stage 2)")


@dataclass
class DataArguments:
    """Which rows are trained on, and how they are read."""

    _argument_group_name: ClassVar[str] = "data"

    data_path: str = field(
        metadata={
            "help": "Training data in LLaVA's format: a .json, .jsonl or .parquet file, a folder of .parquet files, a "
            "Hub id, or a .yaml file that lists a weighted mixture of these."
        }
    )
    image_folder: str | None = field(
        default=None,
        metadata={"help": "Root folder of the image files named in the data. Not needed for embedded images."},
    )
    dataset: str | None = field(
        default=None,
        metadata={
            "help": "Name of the dataset for the model card; a Hub id if it has one. It does not affect training."
        },
    )
    prompt_format: str = field(
        default="chat",
        metadata={
            "help": "How a row becomes text. `plain`: image, caption, end of text (stage 1). `chat`: the model's chat "
            "template."
        },
    )
    bad_rows_limit: float = field(
        default=0.001,
        metadata={
            "help": "Largest share of rows that may be damaged before the run stops. Rows that are only too long or "
            "have turns in another order are filtered and do not count. `quarantine.jsonl` lists all of them."
        },
    )
    streaming: bool = field(
        default=False,
        metadata={
            "help": "Whether to read the rows of a .parquet file or Hub dataset during training instead of preparing "
            "and storing them first. Requires `max_steps`."
        },
    )
    data_cache: str | None = field(
        default=None,
        metadata={"help": "Folder for prepared rows. If None, they are stored in the cache of `datasets`."},
    )

    def __post_init__(self) -> None:
        if self.prompt_format not in ("plain", "chat"):
            raise UserError(f"prompt_format must be plain or chat, not {self.prompt_format!r}")
        if not 0 <= self.bad_rows_limit <= 1:
            raise UserError(f"bad_rows_limit must be between 0 and 1, not {self.bad_rows_limit}")


@dataclass
class OptimizationArguments:
    """The size of a step and the learning rate of each parameter."""

    _argument_group_name: ClassVar[str] = "optimization"

    global_batch_size: int = field(
        metadata={
            "help": "Number of rows per optimizer step over all processes. The number of gradient accumulation steps "
            "follows from it."
        }
    )
    # without None the parser would take it for a plain dict, which cannot be given on the command line
    learning_rates: dict | str | None = field(
        metadata={
            "help": "Learning rate of each parameter group, as `{regex over parameter names: learning rate}`. On the "
            "command line, a JSON object. Each trained parameter must match exactly one regex."
        }
    )
    frozen: list[str] = field(
        default_factory=list, metadata={"help": "Regexes over the names of the parameters that are not trained."}
    )
    clip_by_part: bool = field(
        default=False,
        metadata={
            "help": "Whether to clip the gradient of each part of the model (norm, projector, vision, language) to "
            "`max_grad_norm` on its own, instead of the whole gradient. Not with DeepSpeed."
        },
    )
    norm_storage: str = field(
        default="float32",
        metadata={
            "help": "Precision to which gain and bias of the norm are rounded after every step, `float32` or "
            "`bfloat16`: what training in bfloat16 weights would do to them."
        },
    )
    max_skipped_steps: int = field(
        default=0,
        metadata={
            "help": "Number of steps whose loss or gradient may be NaN or infinite before the run stops; their rows "
            "are not trained on, and `skipped_steps.jsonl` lists them. 0 stops at the first one. Not with DeepSpeed."
        },
    )
    rates: dict[str, float] = field(init=False)  # `learning_rates` as numbers

    def __post_init__(self) -> None:
        rates = json.loads(self.learning_rates) if isinstance(self.learning_rates, str) else self.learning_rates
        if not isinstance(rates, dict) or not rates:
            raise UserError(f"learning_rates must be {{regex: rate}}, not {rates!r}")
        if self.norm_storage not in ("float32", "bfloat16"):
            raise UserError(f"norm_storage must be float32 or bfloat16, not {self.norm_storage!r}")
        if self.max_skipped_steps < 0:
            raise UserError(f"max_skipped_steps must not be negative, not {self.max_skipped_steps}")
        self.rates = {str(pattern): _rate(pattern, rate) for pattern, rate in rates.items()}
        for pattern in (*self.rates, *self.frozen):
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(f"learning_rates, frozen: {pattern!r} is no regular expression ({error})") from error


def _json(text: str, name: str) -> dict[str, Any]:
    """The JSON object of a setting.

    Raises:
        UserError: it is none.
    """
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name}: {text!r} is not JSON ({error})") from error
    if not isinstance(value, dict):
        raise UserError(f"{name} must be a JSON object, not {text!r}")
    return value


def _rate(pattern: str, rate: Any) -> float:
    try:
        number = float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UserError(f"learning_rates: the rate of {pattern!r} must be a number from 0, not {rate!r}")
    return number


@dataclass
class MonitoringArguments:
    """What is measured during training, besides the loss and the gradients."""

    _argument_group_name: ClassVar[str] = "monitoring"

    eval_rows: int = field(
        default=0,
        metadata={
            "help": "Number of rows held out from training. Their loss is logged every `eval_steps`; requires "
            "`eval_strategy: steps`."
        },
    )
    sample_rows: int = field(
        default=0,
        metadata={
            "help": "Number of held-out rows that the model answers at each evaluation. The answers are written to "
            "`samples.jsonl`."
        },
    )
    probe_rows: int = field(
        default=8,
        metadata={
            "help": "Number of rows on which norm and cosine are measured layer by layer, at the start and every "
            "`save_steps`. The results are written to `probe.jsonl`; 0 disables the probe."
        },
    )

    def __post_init__(self) -> None:
        if self.sample_rows > self.eval_rows:
            raise UserError(f"sample_rows ({self.sample_rows}) must not exceed eval_rows ({self.eval_rows})")


@dataclass
class SpeedArguments:
    """Settings that save time or memory and leave loss and gradients unchanged (docs/training_speed.md)."""

    _argument_group_name: ClassVar[str] = "speed"

    labelled_logits_only: bool = field(
        default=True,
        metadata={
            "help": "Whether to compute logits only at labelled positions on a CPU too. On CUDA, TRL always does so."
        },
    )
    packed_rows: bool = field(
        default=False,
        metadata={
            "help": "Whether to concatenate the rows of a micro-batch into one sequence without padding. Rows do not "
            "attend to each other."
        },
    )
    feature_cache: str | None = field(
        default=None,
        metadata={
            "help": "Folder in which to cache the features of a frozen vision tower; all methods share it. If None, "
            "features are not cached."
        },
    )
    feature_cache_gb: float = field(default=50.0, metadata={"help": "Maximum size of the feature cache in GB."})


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
    speed: SpeedArguments

    def fill_in_method(self) -> None:
        """Replace `{method}` by the name of the method in every path."""
        for group in (self.model, self.data, self.speed):
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
    _reject_old_names(argv)
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
    try:
        *groups, training = parser.parse_args_and_config(argv)
    except FileNotFoundError as error:
        raise UserError(f"--config: there is no file {error.filename}") from error
    except UserError:
        raise
    except Exception as error:  # a setting of the wrong kind makes the parser and SFTConfig raise anything
        kind = "" if isinstance(error, ValueError | TypeError) else f"{type(error).__name__}: "
        raise UserError(f"settings: {kind}{' '.join(str(error).split())}") from error
    run = RunArguments(*groups)
    run.fill_in_method()
    _check(run, training)
    _complete(run, training)
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


def _reject_old_names(argv: list[str]) -> None:
    for name in peek_settings(argv) or {}:
        if new := RENAMED.get(name.removeprefix("no_")):
            raise UserError(f"the setting {name.removeprefix('no_')} is now called {new}")


def _check(run: RunArguments, training: SFTConfig) -> None:
    if run.data.streaming and training.max_steps <= 0:
        raise UserError("streaming needs max_steps: the length of a stream is not known")
    if run.data.streaming and run.monitoring.eval_rows:
        raise UserError("eval_rows cannot be held out of a stream: drop eval_rows or streaming")
    if (training.eval_strategy != "no") != (run.monitoring.eval_rows > 0):
        raise UserError("eval_rows and eval_strategy (steps, with eval_steps) go together: give both or neither")
    if training.hub_token:
        raise UserError("hub_token would be written to settings.json: set HF_TOKEN, or log in with `hf auth login`")
    if training.packing or training.padding_free:
        raise UserError("packing and padding_free are for text only: use packed_rows, which supports images")
    if run.optimization.clip_by_part and not training.max_grad_norm:
        raise UserError("clip_by_part needs max_grad_norm, the limit of each part: with 0 nothing is clipped")
    if run.optimization.clip_by_part and training.deepspeed_plugin is not None:
        raise UserError("clip_by_part: DeepSpeed clips the whole gradient by itself; use DDP or FSDP2, or drop it")
    if run.optimization.max_skipped_steps and training.deepspeed_plugin is not None:
        raise UserError("max_skipped_steps: DeepSpeed takes a step before it can be checked; use DDP or FSDP2, or 0")
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
    if run.data.streaming:
        # each process reads its own rows: batches with and without images cannot be dispatched alike
        config.dispatch_batches = False


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
