"""Stage 2 on one GPU: LoRA adapters in the decoder, frozen weights in bfloat16; the final model is merged.

The adapters are injected into the model in place, so that parameter names, checkpoints and resuming stay as without
them.
"""

import json
import re
from collections import Counter
from copy import copy, deepcopy
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import PreTrainedModel

from modeling_aligned_llava.aligned_family import ADAPTER_SETTINGS, ADAPTERS, NORM
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.inspection.parameter_parts import Parts
from modeling_aligned_llava.loading.checkpoint import pinned
from modeling_aligned_llava.loading.files import write_json


if TYPE_CHECKING:
    from peft import LoraModel
    from peft.tuners.lora import LoraLayer


PEFT = "base_model.model."  # before the names of tensors in peft's files
_README = """\
# LoRA adapters, and a connector with a norm

They belong to the model that `adapter_config.json` names, with the norm of `config.json` on its connector:

```python
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained("path/to/this/folder", trust_remote_code=True)
processor = AutoProcessor.from_pretrained("path/to/this/folder")
```

With the package `modeling_aligned_llava`, `load_aligned("path/to/this/folder")` runs no code of the folder.
**peft alone leaves the norm out**: it warns of an unexpected `alignment_norm`, and the outputs are another model's.
"""


# Of peft's `LoraConfig`: the settings that act here. Each other one is refused, some with what to use instead.
ACTING = (
    *("r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "rank_pattern", "alpha_pattern"),
    *("use_rslora", "use_dora", "lora_bias", "init_lora_weights"),
)
INSTEAD = {
    **dict.fromkeys(("modules_to_save", "trainable_token_indices"), "use learning_rates to train a part in full"),
    "bias": "use learning_rates to train biases",
    **dict.fromkeys(("layers_to_transform", "layers_pattern"), "use a regular expression as target_modules"),
}
STARTS = (True, False, "gaussian", "orthogonal")  # of `init_lora_weights`: those that leave the model below as it is


def add_adapters(model: PreTrainedModel, settings: dict[str, Any], seed: int) -> "LoraModel":
    """Add adapters to the linear layers that `target_modules` names.

    Args:
        model: in float32; changed in place.
        settings: arguments of peft's `LoraConfig` in `ACTING`. As `target_modules`, names are looked for in the
            decoder alone, a regular expression in the whole model; without it, or with `all-linear`, all linear layers
            of the decoder are adapted.
        seed: for the random half of the adapters.

    Returns:
        peft's handle of the adapters, for `merge_adapters`.

    Raises:
        UserError: a setting does not act, matches nothing, or makes adapters that could not be trained or merged.
    """
    from peft import LoraConfig, LoraModel  # here: it takes a second

    for name in settings.keys() - set(ACTING):
        raise UserError(f"lora: {name}: {INSTEAD.get(name, 'does not act here')}; settings: {', '.join(ACTING)}")
    if settings.get("init_lora_weights", True) not in STARTS:
        raise UserError(
            f"lora: init_lora_weights: one of {', '.join(map(str, STARTS))}; others change the model itself"
        )
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    tied = getattr(head, "weight", None) is embeddings.weight
    targets = _targets(model, settings.get("target_modules", "all-linear"))
    with errors_named("lora", AttributeError, TypeError, ValueError, RuntimeError):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            adapters = LoraModel(model, LoraConfig(**{**settings, "target_modules": targets}), "default")
        layers = adapted_layers(model)
        kinds = {(type(a), getattr(a.get_base_layer(), "bias", None) is None): a for a in layers.values()}
        for layer in kinds.values():
            deepcopy(layer).merge()  # what cannot be merged is not trained first
    if settings.get("exclude_modules") and isinstance(targets, list) and len(layers) == len(targets):
        raise UserError("lora: exclude_modules: no layer that would be adapted has such a name")
    for name, layer in layers.items():
        if layer.get_base_layer() is head:
            raise UserError(
                f"lora: an adapter on {name} would never be trained: the loss reads the head's own weights"
            )
        if tied and layer.get_base_layer() is embeddings:
            raise UserError(f"lora: {name} is tied to the head, into which an adapter would be merged too")
    for pattern in {**settings.get("rank_pattern", {}), **settings.get("alpha_pattern", {})}:
        if not any(re.search(rf"(^|\.)({pattern})$", name) for name in layers):
            raise UserError(f"lora: rank_pattern or alpha_pattern: no adapted layer is called {pattern}")
    return adapters


def _targets(model: PreTrainedModel, wanted: str | list[str]) -> str | list[str]:
    """The paths of the decoder's layers that are meant, or a regular expression as it is."""
    path = model_parts(model).names["layers"]
    linear = {f"{path}.{name}" for name, m in model.get_submodule(path).named_modules() if type(m) is nn.Linear}
    if wanted == "all-linear":
        return sorted(linear)
    if isinstance(wanted, str):
        return wanted
    part = Parts.of(model)
    modules = [name for name, _ in model.named_modules() if part(f"{name}.weight") == "language"]
    paths = {target: [name for name in modules if f".{name}".endswith(f".{target}")] for target in wanted}
    if absent := [target for target, names in paths.items() if not names]:
        raise UserError(f"lora: target_modules: the decoder has no layer {absent[0]}")
    return sorted({name for names in paths.values() for name in names})


def adapted_layers(model: nn.Module) -> "dict[str, LoraLayer]":
    """Path -> each layer with an adapter."""
    from peft.tuners.lora import LoraLayer

    return {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}


def describe_adapters(model: PreTrainedModel, frozen: list[str], merged: bool = True) -> str:
    """Where the adapters are.

    Raises:
        UserError: some are in a part that `frozen` names, or are frozen themselves, or could not be kept apart.
    """
    if not merged:
        modules_beside(model)
    part = Parts.of(model)
    counts = Counter(part(f"{name}.weight") for name in adapted_layers(model))
    for place in ("vision", "projector"):
        if place in frozen and counts[place]:
            raise UserError(f"lora: target_modules reaches {place}, which frozen names: narrow one of the two")
    if still := [name for name, p in model.named_parameters() if ".lora_" in name and not p.requires_grad]:
        raise UserError(f"lora: frozen matches {still[0]}, which would not be trained: narrow one of the two")
    return "lora: adapters in " + ", ".join(f"{count} layers of {place}" for place, count in counts.items())


def merge_adapters(adapters: "LoraModel", dtype: torch.dtype) -> None:
    """Merge the adapters into the weights and remove them; called by every process.

    The sum is computed in float32, one layer after the other, and stored in `dtype`. FSDP2's shards are gathered for
    it: peft assigns the sum to `.data`, which does nothing to a shard.
    """
    for layer in adapted_layers(adapters.model).values():
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


def modules_beside(model: PreTrainedModel) -> list[str]:
    """The modules that peft keeps in full beside adapters: the connector, and others in which something is trained.

    Raises:
        UserError: a module with adapters inside, or tied embeddings, would be kept in full.
    """
    connector = model_parts(model).names["connector"]
    trained = {
        name.rpartition(".")[0] for name, p in model.named_parameters() if p.requires_grad and ".lora_" not in name
    }
    modules = [connector, *sorted(name for name in trained if not f"{name}.".startswith(f"{connector}."))]
    weight = model.get_input_embeddings().weight
    if weight.requires_grad and getattr(model.get_output_embeddings(), "weight", None) is weight:
        raise UserError("merge_adapters: false: embeddings trained in full would load without the head tied to them")
    adapted = adapted_layers(model)
    for name in modules:
        if inside := [path for path in adapted if f"{path}.".startswith(f"{name}.")]:
            raise UserError(f"merge_adapters: false: {name} is trained in full, and {inside[0]} has an adapter")
    return modules


def write_adapters(folder: Path, adapters: "LoraModel", source: str) -> None:
    """Turn a folder that holds the trained tensors into one of peft's, which loads with its norm.

    Args:
        adapters: from `add_adapters`, not merged.
        source: folder or Hub id of the model that they belong to.
    """
    from peft import get_peft_model_state_dict

    weights = folder / "model.safetensors"
    tensors = load_file(weights)
    named = get_peft_model_state_dict(adapters.model, tensors, adapter_name="default", save_embedding_layers=False)
    named |= {name: tensor for name, tensor in tensors.items() if ".lora_" not in name}
    save_file({f"{PEFT}{name}": tensor for name, tensor in named.items()}, folder / ADAPTERS, {"format": "pt"})
    weights.unlink()
    config: Any = copy(adapters.peft_config["default"])
    source, config.revision = pinned(source)
    config.base_model_name_or_path = str(Path(source).resolve()) if Path(source).is_dir() else source
    config.modules_to_save = modules_beside(adapters.model)
    config.save_pretrained(str(folder))
    if getattr(adapters.model.config, NORM)["projector_norm"] == "none":
        return
    settings = json.loads((folder / ADAPTER_SETTINGS).read_text(encoding="utf-8"))
    settings[NORM] = "peft alone leaves the norm out: see README.md"  # peft warns of an entry that it does not know
    write_json(folder / ADAPTER_SETTINGS, settings)
    (folder / "README.md").write_text(_README, encoding="utf-8")


def _gather(layer: nn.Module) -> None:
    """Replace the shards of a layer by whole tensors, as if FSDP2 had never seen it."""
    for module in layer.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if isinstance(parameter, DTensor):
                setattr(module, name, nn.Parameter(parameter.full_tensor(), requires_grad=False))
