"""The settings of a stage: read from one YAML file and the command line, and those that TRL does not know, with help.

Light on purpose: a finished stage is recognised, and `--help` answers, without importing torch.
"""

import json
import math
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import yaml

from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.methods import method_fields


AUTO = "auto"  # of a setting that the machine decides


def read_settings(argv: list[str]) -> dict[str, Any]:
    """YAML file and command line merged, as they are written; the command line wins.

    All words up to the next option are values of an option; one without a value is true.

    Raises:
        UserError: the file is missing or holds no settings, or a word belongs to no option.
    """
    options: dict[str, list[str]] = {}
    for word in argv:
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options[name.replace("-", "_")] = values = [value] if equals else []
        elif options:
            values.append(word)
        else:
            raise UserError(f"settings: {word!r} belongs to no option")
    given = _read_file(options.pop("config")) if "config" in options else {}
    for name, values in options.items():
        is_list = len(values) > 1 or isinstance(given.get(name), list)
        given[name] = values if is_list else values[0] if values else "true"
    return given


def _read_file(names: list[str]) -> dict[str, Any]:
    if len(names) != 1:
        raise UserError(f"--config takes one file, not {len(names)}")
    if not Path(names[0]).exists():
        raise UserError(f"--config: there is no file {names[0]}")
    with errors_named(f"settings: {names[0]}", OSError, UnicodeDecodeError, yaml.YAMLError):
        content = yaml.safe_load(Path(names[0]).read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise UserError(f"settings: {names[0]} must be a YAML mapping of settings")
    return content


def with_method(given: dict[str, Any]) -> dict[str, Any]:
    """Settings from `read_settings` with `{method}` in each text replaced by the name of the method."""
    method = str(given.get("method"))
    return {name: text.replace("{method}", method) if isinstance(text, str) else text for name, text in given.items()}


def output_dir(given: dict[str, Any]) -> str:
    """The output folder in settings from `read_settings`."""
    return str(with_method(given).get("output_dir", ""))


def setting(default: Any = MISSING, *, help: str, default_factory: Any = MISSING) -> Any:
    """A field of any type, with its text in `--help`."""
    return field(default=default, default_factory=default_factory, metadata={"help": help})  # type: ignore[call-overload]


@dataclass
class ModelArguments:
    """What is trained: a method, and the backbones (stage 1) or the checkpoint (stage 2) to start from."""

    _argument_group_name: ClassVar[str] = "model"

    method: str = setting(
        help="Name of the method, as listed in `configuration/methods.yaml`. `{method}` in the value of any other "
        "setting is replaced by this name."
    )
    norm_fields: dict | str | None = setting(
        default=None,
        help="Fields of `AlignedLlavaConfig` that replace those of the method, such as `{target_scale: 4.0}`; the "
        "same in both stages. On the command line, a JSON object.",
    )
    vision_tower: str | None = setting(
        default=None, help="Path or Hub id of the vision tower that stage 1 assembles the model from."
    )
    language_model: str | None = setting(
        default=None, help="Path or Hub id of the language model that stage 1 assembles the model from."
    )
    chat_template: str | None = setting(
        default=None,
        help="Name of a chat template shipped with `modeling_aligned_llava`, for the model that stage 1 assembles. If "
        "None, the language model's own template is used.",
    )
    model_name_or_path: str | None = setting(
        default=None,
        help="Checkpoint to start from, a folder or Hub id: that of stage 1 with the same method, or any "
        "vision-language model of another family, which then gets the method's norm.",
    )
    attn_implementation: str | None = setting(
        default=None,
        help="Attention implementation of the language model, such as `sdpa`, `flash_attention_2` or "
        "`flex_attention`. If None, transformers chooses, normally `sdpa`.",
    )
    compile_layers: str = setting(
        default=AUTO,
        help="Whether to compile the layers of decoder and tower, each on its own and for all lengths at once: "
        "`true`, `false`, or `auto`, which does so on a GPU unless weights are sharded. The first steps wait for it. "
        "`torch_compile` compiles the whole model instead.",
    )
    use_kernels: bool = setting(
        default=False,
        help="Whether to use the Hub's kernels for norms, gates and rotary embeddings; needs the package `kernels` "
        "and, the first time, the Hub.",
    )
    save_dtype: str | None = setting(
        default=None,
        help="Precision of the final weights, `bfloat16` or `float32`; the norm is always float32. If None, bfloat16 "
        "where training computes in it (`bf16`). Checkpoints to resume from are float32 either way.",
    )
    lora: dict | str | None = setting(
        default=None,
        help="Settings of the LoRA adapters, passed to peft's `LoraConfig`; without `target_modules`, they go into "
        "all linear layers of the decoder. On the command line, a JSON object. If None, there are none.",
    )
    merge_adapters: bool = setting(
        default=True,
        help="Whether the final model has its LoRA adapters merged. If not, the folder holds what was trained, in "
        "peft's format, and `load_aligned` reads it with the model that training started from. Not for models "
        "assembled here.",
    )
    config_fields: dict[str, Any] = field(init=False)  # those of the method, with `norm_fields`

    def __post_init__(self) -> None:
        self.norm_fields = _json_object(self.norm_fields, "norm_fields")
        self.config_fields = method_fields(self.method, self.norm_fields)
        self.compile_layers = str(self.compile_layers).lower()  # YAML reads true as a bool
        if self.compile_layers not in (AUTO, "true", "false"):
            raise UserError(f"compile_layers must be true, false or {AUTO}, not {self.compile_layers!r}")
        if self.save_dtype not in (None, "bfloat16", "float32"):
            raise UserError(f"save_dtype must be bfloat16 or float32, not {self.save_dtype!r}")
        self.lora = _json_object(self.lora, "lora")
        if not (self.lora or self.merge_adapters):
            raise UserError("merge_adapters: false needs lora")
        from_backbones = self.vision_tower is not None and self.language_model is not None
        if from_backbones == (self.model_name_or_path is not None):
            raise UserError(
                "give either vision_tower and language_model (stage 1) or model_name_or_path (stage 2, fine-tuning)"
            )
        if self.chat_template and not from_backbones:
            raise UserError("chat_template is for stage 1: save the processor of model_name_or_path with another one")


@dataclass
class DataArguments:
    """Which rows are trained on, and how they are read."""

    _argument_group_name: ClassVar[str] = "data"

    data_path: str = setting(
        help="Training data in LLaVA's format: a .json, .jsonl or .parquet file, a folder of .parquet files, a Hub "
        "id, or a .yaml file that lists a weighted mixture of these."
    )
    image_folder: str | None = setting(
        default=None, help="Root folder of the image files named in the data. Not needed for embedded images."
    )
    dataset: str | None = setting(
        default=None,
        help="Name of the dataset for the model card; a Hub id if it has one. It does not affect training.",
    )
    prompt_format: str = setting(
        default="chat",
        help="How a row becomes text. `plain`: image, caption, end of text (stage 1). `chat`: the model's chat "
        "template.",
    )
    bad_rows_limit: float = setting(
        default=0.001,
        help="Largest share of rows that may be damaged before the run stops. Rows that are only too long or have "
        "turns in another order are filtered and do not count. `quarantine.jsonl` lists all of them.",
    )
    data_cache: str | None = setting(
        default=None, help="Folder for prepared rows. If None, they are stored in the cache of `datasets`."
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

    global_batch_size: int = setting(
        help="Number of rows per optimizer step over all processes. The number of gradient accumulation steps follows "
        "from it."
    )
    # without None the parser would take it for a plain dict, which cannot be given on the command line
    learning_rates: dict | str | None = setting(
        help="Learning rate of each parameter group, as `{pattern: learning rate}`. A pattern is a regex over "
        "parameter names or, where none matches, norm, projector, vision, language, lora. On the command line, JSON. "
        "Each trained parameter must match exactly one pattern."
    )
    micro_batch_tokens: str | None = setting(
        default=None,
        help="Number of tokens of a micro-batch at most, padding included: the rows of a step are sorted by length "
        "and cut into micro-batches of varying numbers of rows. `auto` is what fits into the GPU and fills it. If "
        "None or 0, a micro-batch has `per_device_train_batch_size` rows.",
    )
    frozen: list[str] = setting(
        default_factory=list, help="Patterns, as in `learning_rates`, of the parameters that are not trained."
    )
    clip_by_part: bool = setting(
        default=False,
        help="Whether to clip the gradient of each part of the model (norm, projector, vision, language) to "
        "`max_grad_norm` on its own, instead of the whole gradient. Not with DeepSpeed.",
    )
    max_skipped_steps: int = setting(
        default=0,
        help="Number of steps whose loss or gradient may be NaN or infinite before the run stops; their rows are not "
        "trained on, and `skipped_steps.jsonl` lists them. 0 stops at the first one. Not with DeepSpeed.",
    )
    rates: dict[str, float] = field(init=False)  # `learning_rates` as numbers
    by_tokens: bool = field(init=False)  # `micro_batch_tokens` is in use
    token_budget: int | None = field(init=False)  # as a number; None: what fits
    choose_checkpointing: bool = field(init=False, default=False)  # `gradient_checkpointing: auto`

    def __post_init__(self) -> None:
        self.token_budget = None if self.micro_batch_tokens == AUTO else _budget(self.micro_batch_tokens or 0)
        self.by_tokens = self.token_budget != 0
        rates = _json_object(self.learning_rates, "learning_rates")
        if not rates:
            raise UserError("learning_rates must be {regex: rate}, and not empty")
        self.rates = {str(pattern): _rate(pattern, rate) for pattern, rate in rates.items()}
        for pattern in (*self.rates, *self.frozen):
            with errors_named(f"learning_rates, frozen: {pattern!r} is not a regular expression", re.error):
                re.compile(pattern)


@dataclass
class MonitoringArguments:
    """What is measured during training, besides the loss and the gradients."""

    _argument_group_name: ClassVar[str] = "monitoring"

    eval_rows: int = setting(
        default=0,
        help="Number of rows held out from training, about: rows of one image stay together. Their loss is logged "
        "every `eval_steps`; requires `eval_strategy: steps`.",
    )
    probe_rows: int = setting(
        default=8,
        help="Number of rows on which norm and cosine are measured layer by layer, at the start and every "
        "`save_steps`. The results are written to `probe.jsonl`; 0 disables the probe.",
    )


def _json_object(value: dict | str | None, name: str) -> dict[str, Any] | None:
    """A setting given as a mapping or as the text of a JSON object; None if it is not given."""
    if isinstance(value, str):
        with errors_named(f"{name}: {value!r} is not JSON", ValueError):
            value = json.loads(value)
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{name} must be a JSON object, not {value!r}")
    return value


def _budget(tokens: str | int) -> int:
    try:
        number = int(tokens)
    except ValueError:
        number = -1
    if number < 0:
        raise UserError(f"micro_batch_tokens must be a whole number or {AUTO}, not {tokens!r}")
    return number


def _rate(pattern: str, rate: Any) -> float:
    try:
        number = float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UserError(f"learning_rates: the rate of {pattern!r} must be a number from 0, not {rate!r}")
    return number


GROUPS = (ModelArguments, DataArguments, OptimizationArguments, MonitoringArguments)


def help_text(program: str) -> str:
    """What `--help` prints: our settings by group."""
    lines = [
        f"usage: {program} --config FILE.yaml --method NAME [--SETTING VALUE ...]",
        "",
        "Trains one stage of one method. Settings are given in the YAML file or on the command line, which wins.",
    ]
    for group in GROUPS:
        lines += ["", f"{group._argument_group_name}: {group.__doc__}"]
        for option in fields(group):
            if text := option.metadata.get("help"):
                default = "" if option.default is MISSING else f" (default: {option.default})"
                lines.append(f"  --{option.name}: {text}{default}")
    return "\n".join([*lines, "", "training: the settings of TRL's SFTConfig; those that would not act are refused."])
