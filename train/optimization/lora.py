"""Stage 2 on one GPU: LoRA adapters in the decoder, frozen weights in bfloat16; the final model is merged.

The adapters are injected into the model in place, so that parameter names, checkpoints and resuming stay as without
them.
"""

from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.adapters import ADAPTERS, PEFT


if TYPE_CHECKING:
    from peft import LoraModel


def add_adapters(model: PreTrainedModel, settings: dict[str, Any], seed: int) -> "LoraModel":
    """Add adapters to the linear layers that `target_modules` names.

    Args:
        model: in float32; changed in place.
        settings: arguments of peft's `LoraConfig`; without `target_modules`, all linear layers of the decoder.
        seed: for the random half of the adapters.

    Returns:
        peft's handle of the adapters, for `merge_adapters`.

    Raises:
        UserError: a setting is unknown or matches nothing.
    """
    from peft import LoraConfig, LoraModel  # here: it takes a second

    try:
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            adapters = LoraModel(
                model, LoraConfig(**{"target_modules": _decoder_layers(model), **settings}), "default"
            )
    except (TypeError, ValueError) as error:
        raise UserError(f"lora: {' '.join(str(error).split())}") from error
    return adapters


def _decoder_layers(model: PreTrainedModel) -> list[str]:
    path = model_parts(model).names["layers"]
    return [f"{path}.{name}" for name, each in model.get_submodule(path).named_modules() if type(each) is nn.Linear]


def merge_adapters(adapters: "LoraModel", dtype: torch.dtype) -> None:
    """Merge the adapters into the weights and remove them; called by every process.

    The sum is computed in float32, one layer after the other, and stored in `dtype`. FSDP2's shards are gathered for
    it: peft assigns the sum to `.data`, which does nothing to a shard.
    """
    from peft.tuners.lora import LoraLayer

    for layer in adapters.model.modules():
        if isinstance(layer, LoraLayer):
            base = layer.get_base_layer()
            shards = {name: p for name, p in base.named_parameters() if isinstance(p, DTensor)}
            _gather(cast(nn.Module, layer))
            cast(nn.Module, layer).float()
            layer.merge(safe_merge=True)
            base.to(dtype)
            for name, shard in shards.items():
                merged = distribute_tensor(getattr(base, name).detach(), shard.device_mesh, shard.placements)
                setattr(base, name, nn.Parameter(merged, requires_grad=False))
    adapters.unload()


def write_adapters(folder: Path, adapters: "LoraModel", source: str) -> None:
    """Turn a folder that holds the trained tensors into one of peft's, which `load_aligned` reads.

    Args:
        adapters: from `add_adapters`, not merged.
        source: folder or Hub id of the model that they belong to.
    """
    tensors = load_file(folder / "model.safetensors")
    named = {f"{PEFT}{name.replace('.default.', '.')}": tensor for name, tensor in tensors.items()}
    save_file(named, folder / ADAPTERS, metadata={"format": "pt"})
    (folder / "model.safetensors").unlink()
    config: Any = copy(adapters.peft_config["default"])
    config.base_model_name_or_path = str(Path(source).resolve()) if Path(source).is_dir() else source
    config.modules_to_save = [model_parts(adapters.model).names["connector"]]
    config.save_pretrained(str(folder))


def _gather(layer: nn.Module) -> None:
    """Replace the shards of a layer by whole tensors, as if FSDP2 had never seen it."""
    for module in layer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                setattr(module, name, nn.Parameter(parameter.full_tensor(), requires_grad=False))
