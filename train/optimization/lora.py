"""Stage 2 on one GPU: LoRA adapters in the decoder, frozen weights in bfloat16; the final model is merged.

The adapters are injected into the model in place, so that parameter names, checkpoints and resuming stay as without
them.
"""

from typing import TYPE_CHECKING, Any

import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError


if TYPE_CHECKING:
    from peft import LoraModel


def add_adapters(
    model: AlignedLlavaForConditionalGeneration, settings: dict[str, Any], seed: int, frozen_dtype: torch.dtype
) -> "LoraModel":
    """Add adapters to the linear layers that `target_modules` names.

    Args:
        model: in float32; changed in place.
        settings: arguments of peft's `LoraConfig`.
        seed: for the random half of the adapters.
        frozen_dtype: of all weights except those of projector and adapters.

    Returns:
        peft's handle of the adapters, for `merge_adapters`.

    Raises:
        UserError: peft is not installed, or a setting is unknown or matches nothing.
    """
    try:
        from peft import LoraConfig, LoraModel
    except ImportError as error:
        raise UserError("lora needs peft: install the extra `train`") from error
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            adapters = LoraModel(model, LoraConfig(**settings), "default")
    except (TypeError, ValueError) as error:
        raise UserError(f"lora: {' '.join(str(error).split())}") from error
    for name, parameter in model.named_parameters():
        if ".lora_" not in name and "multi_modal_projector" not in name:
            parameter.data = parameter.data.to(frozen_dtype)
    return adapters


def merge_adapters(adapters: "LoraModel") -> None:
    """Merge the adapters into the weights and remove them, in float32 on the CPU.

    Twice the frozen weights' memory, which a GPU that trained them in bfloat16 may not have.
    """
    adapters.model.cpu().float()
    adapters.merge_and_unload(safe_merge=True)
