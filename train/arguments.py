"""What a stage is told: `RunArguments` (ours) beside TRL's `SFTConfig`, from one YAML file and the command line."""

import json
import os
import warnings
from dataclasses import dataclass, field, fields

import torch
from trl import SFTConfig, TrlParser

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.methods import method_fields


@dataclass
class RunArguments:
    """Settings of a stage that TRL does not know. Texts may hold `{method}`, the name of the arm."""

    method: str = field(metadata={"help": "the arm, named in configuration/methods.yaml"})
    data_path: str = field(metadata={"help": "conversations in LLaVA's JSON format"})
    image_folder: str = field(metadata={"help": "root folder of the images named there"})
    global_batch_size: int = field(metadata={"help": "rows a step over all processes; accumulation follows from it"})
    learning_rates: dict | str = field(metadata={"help": "{regex over parameter names: learning rate}"})
    frozen: list[str] = field(default_factory=list, metadata={"help": "regexes of parameters that are not trained"})
    prompt_format: str = field(
        default="chat", metadata={"help": "plain: image, caption, end (stage 1); chat: the chat template"}
    )
    dataset: str | None = field(
        default=None, metadata={"help": "what the data is, a Hub id if it has one: for the card"}
    )
    vision_tower: str | None = field(default=None, metadata={"help": "stage 1: folder or Hub id of the vision tower"})
    language_model: str | None = field(default=None, metadata={"help": "stage 1: folder or Hub id of the decoder"})
    chat_template: str | None = field(
        default=None, metadata={"help": "stage 1: a shipped chat template; default: the decoder's own"}
    )
    model_name_or_path: str | None = field(default=None, metadata={"help": "stage 2: the checkpoint to go on from"})

    compact_head: bool = field(default=True, metadata={"help": "logits only where there are labels, on a CPU too"})
    packed_rows: bool = field(
        default=False, metadata={"help": "the rows of a micro-batch in one sequence without padding or cross-talk"}
    )
    attn_implementation: str | None = field(
        default=None, metadata={"help": "sdpa (default), flash_attention_2, flex_attention: the last two for packing"}
    )
    feature_cache: str | None = field(
        default=None, metadata={"help": "folder for the features of a frozen vision tower, shared by all arms"}
    )
    feature_cache_gb: float = field(default=50.0, metadata={"help": "most that the feature cache may hold, in GB"})
    held_out: int = field(
        default=0, metadata={"help": "rows kept from training; their loss every eval_steps, eval_strategy: steps"}
    )
    sample_rows: int = field(default=0, metadata={"help": "held-out rows that are answered at every evaluation"})
    probe_rows: int = field(
        default=8, metadata={"help": "rows of the norm and cosine probe, at start and every save_steps; 0: no probe"}
    )

    def __post_init__(self) -> None:
        method_fields(self.method)
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, str) and each.name != "learning_rates":
                setattr(self, each.name, value.replace("{method}", self.method))
        given = json.loads(self.learning_rates) if isinstance(self.learning_rates, str) else self.learning_rates
        self.learning_rates = {pattern: float(rate) for pattern, rate in given.items()}
        if self.sample_rows > self.held_out:
            raise UserError(f"sample_rows {self.sample_rows} are more than the {self.held_out} held_out rows")
        if self.prompt_format not in ("plain", "chat"):
            raise UserError(f"prompt_format must be plain or chat, not {self.prompt_format!r}")
        from_backbones = self.vision_tower is not None and self.language_model is not None
        if from_backbones == (self.model_name_or_path is not None):
            raise UserError("give either vision_tower and language_model (stage 1) or model_name_or_path (stage 2)")


def parse_arguments(argv: list[str]) -> tuple[RunArguments, SFTConfig]:
    """Parse `--config FILE.yaml --method NAME [--any-setting VALUE ...]`; the command line wins over the file.

    Raises:
        UserError: the file is missing or a setting is unknown or wrong.
    """
    warnings.filterwarnings("ignore", "`gradient_checkpointing` is deprecated", FutureWarning)  # TRL sets it itself
    if not torch.accelerator.is_available():
        argv = [*argv, "--use_cpu", "true"]  # or several processes would not notice each other
    try:
        parser = TrlParser([RunArguments, SFTConfig])  # type: ignore[list-item]
        run, training = parser.parse_args_and_config(argv)
    except FileNotFoundError as error:
        raise UserError(f"--config: there is no file {error.filename}") from error
    except (ValueError, TypeError) as error:
        raise UserError(f"settings: {' '.join(str(error).split())}") from error
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if started != training.world_size:
        raise UserError(f"{started} processes were started, but the trainer sees {training.world_size}")
    if training.packing or training.padding_free:
        raise UserError("packing and padding_free are for text alone: say packed_rows for rows with images")
    training.output_dir = training.output_dir.replace("{method}", run.method)
    training.learning_rate = max(run.learning_rates.values())  # for the log; the optimizer goes by group
    training.remove_unused_columns = False  # the collator needs the image paths
    training.disable_tqdm = True  # rich shows the progress
    if (training.eval_strategy != "no") != (run.held_out > 0):
        raise UserError("held_out and eval_strategy (steps, with eval_steps) go together: give both or none")
    training.gradient_accumulation_steps = accumulation_steps(
        run.global_batch_size, training.per_device_train_batch_size, training.world_size
    )
    return run, training


def accumulation_steps(global_batch_size: int, per_device: int, world_size: int) -> int:
    """Micro-batches a step, so that `per_device * world_size * steps` is the global batch.

    Raises:
        UserError: the global batch cannot be divided so.
    """
    steps, rest = divmod(global_batch_size, per_device * world_size)
    if rest or steps == 0:
        raise UserError(
            f"global_batch_size {global_batch_size} is not a multiple of "
            f"per_device_train_batch_size {per_device} x {world_size} processes"
        )
    return steps
