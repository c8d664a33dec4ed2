"""Stage 2 on one GPU: low-rank adapters in the decoder, frozen weights in bfloat16; the final model is merged.

The adapters are put into the model in place, so that names, checkpoints and resuming are as without them.
"""

from typing import Any

import torch

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.errors import UserError


def add_adapters(
    model: AlignedLlavaForConditionalGeneration, settings: dict[str, Any], seed: int, frozen_dtype: torch.dtype
) -> None:
    """Put adapters into the linear layers that `target_modules` names.

    Args:
        model: in float32; changed in place.
        settings: arguments of peft's `LoraConfig`.
        seed: of the adapters' random half.
        frozen_dtype: of all weights but those of projector and adapters.

    Raises:
        UserError: peft is not installed, or a setting is unknown or matches nothing.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise UserError("lora needs peft: install the extra `train`") from error
    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            inject_adapter_in_model(LoraConfig(**settings), model)
    except (TypeError, ValueError) as error:
        raise UserError(f"lora: {' '.join(str(error).split())}") from error
    for name, parameter in model.named_parameters():
        if ".lora_" not in name and "multi_modal_projector" not in name:
            parameter.data = parameter.data.to(frozen_dtype)


@torch.no_grad()
def merge_adapters(model: AlignedLlavaForConditionalGeneration) -> None:
    """Add the adapters to the weights they adapt, in float32, and take them out."""
    from peft.tuners.lora import LoraLayer

    model.float()
    for name, layer in list(model.named_modules()):
        if isinstance(layer, LoraLayer):
            layer.merge(safe_merge=True)  # type: ignore[operator]
            model.set_submodule(name, layer.get_base_layer())
