"""Layers are compiled, which makes them faster without changing what they compute.

Elementwise operations (norms, rotary embeddings, gates, residuals) take most of the bytes that a layer moves;
compiled, they read and write once.
"""

import torch
from torch import nn
from transformers import PreTrainedModel
from trl import SFTConfig

from modeling_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.upstream import require
from train.parse import uses_fsdp
from train.settings import AUTO


require(__name__)


def compiles_layers(wanted: str, training: SFTConfig) -> bool:
    """Whether to compile: as `wanted` says, or for `auto` on a GPU, unless weights are sharded."""
    if wanted != AUTO:
        return wanted == "true"
    sharded = uses_fsdp(training) or training.deepspeed_plugin is not None
    return training.device.type == "cuda" and not sharded and not training.torch_compile


def compile_layers(model: PreTrainedModel, device: torch.device) -> str:
    """Compile the layers of the decoder, and of our models' tower, each in place; all layers of a kind share the code.

    Lengths and numbers of rows are dynamic, so the code is compiled once (and again for a single row). A layer that
    cannot be compiled runs as before, and torch says so.

    Args:
        device: where the model will be trained.

    Returns:
        A line about what will run.
    """
    try:
        torch.compile(lambda x: x.exp() + 1, dynamic=True)(torch.ones(2, device=device))
    except Exception as error:  # a missing compiler or a broken cache makes inductor raise anything
        reason = str(error).strip().partition("\n")[0][:200]
        return f"layers are not compiled, because torch.compile fails here: {reason}"
    torch._dynamo.config.suppress_errors = True
    parts = model_parts(model)
    layers = list(parts.layers)
    if parts.vision is not None and model.config.model_type == AlignedLlavaConfig.model_type:
        layers += [layer for module in parts.vision.modules() if isinstance(module, nn.ModuleList) for layer in module]
    for layer in layers:
        layer.compile(dynamic=True)
    return f"{len(layers)} layers are compiled; the first steps wait for it"
