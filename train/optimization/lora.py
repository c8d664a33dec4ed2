"""Stage 2 on one GPU: LoRA adapters in the decoder, frozen weights in bfloat16; the final model is merged.

The adapters are injected into the model in place, so that parameter names, checkpoints and resuming stay as without
them.
"""

from typing import TYPE_CHECKING, Any, cast

import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError


if TYPE_CHECKING:
    from peft import LoraModel


def add_adapters(model: AlignedLlavaForConditionalGeneration, settings: dict[str, Any], seed: int) -> "LoraModel":
    """Add adapters to the linear layers that `target_modules` names.

    Args:
        model: in float32; changed in place.
        settings: arguments of peft's `LoraConfig`.
        seed: for the random half of the adapters.

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
    return adapters


def merge_adapters(adapters: "LoraModel", dtype: torch.dtype) -> None:
    """Merge the adapters into the weights and remove them.

    The sum is computed in float32, one layer after the other, and stored in `dtype`.
    """
    from peft.tuners.lora import LoraLayer

    for layer in adapters.model.modules():
        if isinstance(layer, LoraLayer):
            cast(torch.nn.Module, layer).float()
            layer.merge(safe_merge=True)
            layer.get_base_layer().to(dtype)
    adapters.unload()
