"""Settings: the method, and what the stage starts from."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.methods import method_fields
from train.arguments.json_object import json_object


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
            "help": "Checkpoint to start from, a folder or Hub id: that of stage 1 with the same method, or any "
            "vision-language model of another family, which then gets the method's norm."
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
            "help": "Settings of the LoRA adapters, passed to peft's `LoraConfig`; without `target_modules`, they go "
            "into all linear layers of the decoder. On the command line, a JSON object. If None, there are none."
        },
    )

    merge_adapters: bool = field(
        default=True,
        metadata={
            "help": "Whether the final model has its LoRA adapters merged. If not, the folder holds what was trained, "
            "in peft's format, and `load_aligned` reads it with the model that training started from. Not for models "
            "assembled here."
        },
    )

    config_fields: dict[str, Any] = field(init=False)  # those of the method, with `norm_fields`

    def __post_init__(self) -> None:
        self.norm_fields = json_object(self.norm_fields, "norm_fields")
        self.config_fields = method_fields(self.method, self.norm_fields)
        if self.save_dtype not in (None, "bfloat16", "float32"):
            raise UserError(f"save_dtype must be bfloat16 or float32, not {self.save_dtype!r}")
        self.lora = json_object(self.lora, "lora")
        if not (self.lora or self.merge_adapters):
            raise UserError("merge_adapters: false needs lora")
        from_backbones = self.vision_tower is not None and self.language_model is not None
        if from_backbones == (self.model_name_or_path is not None):
            raise UserError(
                "give either vision_tower and language_model (stage 1) or model_name_or_path (stage 2, fine-tuning)"
            )
