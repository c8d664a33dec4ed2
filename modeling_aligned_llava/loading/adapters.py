"""LoRA adapters kept apart: a folder of peft with what was trained, without the model that training started from."""

from pathlib import Path
from typing import Any, cast

from safetensors.torch import load_file
from transformers import PreTrainedModel

from modeling_aligned_llava.errors import UserError


ADAPTERS = "adapter_model.safetensors"
PEFT = "base_model.model."  # before the names of tensors in peft's files


def adapter_settings(folder: Path) -> Any:
    """The `LoraConfig` of a folder of adapters; None if it holds a whole model.

    Raises:
        UserError: peft is not installed.
    """
    if not (folder / "adapter_config.json").is_file():
        return None
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise UserError(f"{folder} holds adapters, which need peft: pip install peft") from error
    return LoraConfig.from_pretrained(str(folder))


def merge_from(folder: Path, settings: Any, model: PreTrainedModel) -> PreTrainedModel:
    """Merge the adapters of a folder into the model that they were trained on, and replace what was trained in full.

    Raises:
        UserError: a tensor is missing, or belongs to another model.
    """
    from peft import LoraModel

    settings.modules_to_save = None  # the tensors are put into the modules themselves
    adapters = LoraModel(model, settings, "default")
    tensors = {_in_memory(name): tensor for name, tensor in load_file(folder / ADAPTERS).items()}
    result = model.load_state_dict(tensors, strict=False)
    missing = [name for name in result.missing_keys if ".lora_" in name]
    if result.unexpected_keys or missing:
        name = (result.unexpected_keys + missing)[0]
        raise UserError(f"{folder}: {name} does not fit {settings.base_model_name_or_path}")
    return cast(PreTrainedModel, adapters.merge_and_unload())


def _in_memory(name: str) -> str:
    name = name.removeprefix(PEFT)
    return name.replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")
