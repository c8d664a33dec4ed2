"""What a stage needs: memory per device and operations, counted on a model of the meta device.

The model holds no weights, so a laptop counts what a cluster will need. `python -m train.preflight` prints it.
"""

import os
import time
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForImageTextToText, PreTrainedConfig

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.assembly.from_backbones import patches
from modeling_aligned_llava.inspection.model_parts import model_parts
from train.optimization.lora import add_adapters
from train.optimization.parameter_groups import freeze, group_parameters


ENGINES = ("one", "ddp", "fsdp2")
SPARE = 2e9  # bytes of a GPU that CUDA and fragments of memory take
ADAM = 8  # bytes per trained parameter: two moments in float32


def meta_model(
    config: PreTrainedConfig,
    rates: dict[str, float],
    frozen: list[str],
    bf16: bool,
    lora: dict[str, Any] | None = None,
) -> Any:
    """The model of `config` on the meta device, its parameters trained, frozen and stored as in training.

    Of another family than ours, it lacks the few parameters of the norm.

    Raises:
        UserError: a parameter matches no rate, or several, or the settings of the adapters are wrong.
    """
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(config)
        if lora:
            add_adapters(model, lora, seed=0)
    freeze(model, group_parameters(model, rates, frozen), torch.bfloat16 if bf16 else torch.float32)
    return model


@dataclass(frozen=True)
class Batch:
    """One micro-batch: `rows` of at most `length` tokens, visual ones included, with `images` images in all."""

    rows: float
    length: int
    images: float


@dataclass(frozen=True)
class Memory:
    """Bytes per device.

    Args:
        weights: stored weights; `gradients` and `optimizer` those of the trained ones.
        copies: weights in the precision of the computation, of the whole model or of the units gathered at a time.
        activations: at most what is saved for the backward pass of the longest micro-batch.
    """

    weights: float
    gradients: float
    optimizer: float
    copies: float
    activations: float

    @property
    def total(self) -> float:
        """The sum."""
        return sum(getattr(self, field.name) for field in fields(self))


def memory(
    model: Any,
    batch: Batch,
    *,
    engine: str = "one",
    processes: int = 1,
    bf16: bool = True,
    checkpointing: int = 0,
) -> Memory:
    """Memory per device under `engine`, one of `ENGINES` (docs/train.md, "Precision").

    Args:
        checkpointing: every how many layers one is computed again for its gradient; 0: none.
    """
    trained = count(model)
    frozen = sum(p.numel() * p.element_size() for p in model.parameters() if not p.requires_grad)
    activations = _activations(model, batch, bf16, checkpointing)
    shards = processes if engine == "fsdp2" else 1
    if engine == "fsdp2":
        # two layers at a time as weights and one as float32 gradients; the head stays gathered
        layer, head = _largest_layer(model), model.get_output_embeddings().weight.numel()
        width = 2 if bf16 else 4
        copies = layer * (2 * width + 4) + head * (width + 4)
    else:
        copies = 2 * trained if bf16 else 0  # autocast keeps the cast weights until the end of the forward pass
    buckets = 4 * trained if engine == "ddp" else 0  # the gradients are copied to be sent
    return Memory(
        weights=(4 * trained + frozen) / shards,
        gradients=(4 * trained + buckets) / shards,
        optimizer=ADAM * trained / shards,
        copies=copies,
        activations=activations,
    )


def flops(model: AlignedLlavaForConditionalGeneration, batch: Batch, checkpointing: int = 0) -> float:
    """Operations of a micro-batch's forward and backward pass: products with weights, and attention.

    Per token and parameter: 2 forward, 2 for the gradient of the input, 2 for that of a trained weight, 2 to compute
    the forward pass again with checkpointing (the share of layers that is). The head is left out.
    """
    text, vision = model.config.text_config, model.config.vision_config
    visual_tokens = patches(vision)
    total, again = 0.0, 1 / checkpointing if checkpointing else 0.0
    for module, tokens, inner, layers, length in (
        (
            model.model.vision_tower,
            batch.images * visual_tokens,
            vision.hidden_size,
            vision.num_hidden_layers,
            visual_tokens,
        ),
        (model.model.multi_modal_projector, batch.images * visual_tokens, 0, 0, 0),
        (
            model.model.language_model.layers,
            batch.rows * batch.length,
            text.hidden_size,
            text.num_hidden_layers,
            batch.length,
        ),
    ):
        size, trained = sum(p.numel() for p in module.parameters()), count(module)
        backward = module is not model.model.vision_tower or trained > 0
        passes = 1 + backward * (1 + again)
        attention = 4 * length * inner * layers * (1 + backward * (2 + again))
        total += tokens * (2 * size * passes + 2 * trained + attention)
    return total


def matrix_products(dtype: torch.dtype) -> float:
    """Operations a second of this CPU in products of matrices as wide as a small decoder's."""
    states, weights = torch.ones(1024, 1024, dtype=dtype), torch.ones(1024, 4096, dtype=dtype)
    states @ weights
    start, products = time.perf_counter(), 0
    while (seconds := time.perf_counter() - start) < 0.3:
        states @ weights
        products += 1
    return products * 2 * 1024 * 1024 * 4096 / seconds


def device_memory() -> float:
    """Bytes of the GPU or, without one, of the machine."""
    if torch.cuda.is_available():
        return float(torch.cuda.get_device_properties(0).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))


def count(model: nn.Module) -> int:
    """The number of trained parameters."""
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


def _largest_layer(model: Any) -> int:
    parts = model_parts(model)
    modules = [module for part in (parts.layers, parts.vision) if part for module in part.modules()]
    layers = [layer for module in modules if isinstance(module, nn.ModuleList) for layer in module]
    return max(sum(p.numel() for p in layer.parameters()) for layer in layers)


def _decoder_elements(text: Any, length: int, bf16: bool) -> int:
    """Elements per token that a layer of a decoder keeps.

    Inputs of norms and matrices, queries, keys, values, the gated product. Eager attention repeats keys and values for
    every head, and keeps its probabilities for every other token, in float32 and, to be multiplied, in bfloat16.
    """
    heads, eager = text.num_attention_heads, text._attn_implementation == "eager"
    head = getattr(text, "head_dim", None) or text.hidden_size // heads
    keys = (not eager and getattr(text, "num_key_value_heads", None)) or heads
    probabilities = heads * length * (3 if bf16 else 1) if eager else 0
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    widest = max(inner) if isinstance(inner, list | tuple) else inner  # Gemma 3n has a width for each layer
    return 7 * text.hidden_size + head * (2 * heads + 2 * keys) + 4 * widest + probabilities


def _activations(model: Any, batch: Batch, bf16: bool, checkpointing: int) -> float:
    text = model.config.get_text_config()
    decoder = _decoder_elements(text, batch.length, bf16)
    total = batch.rows * batch.length * _kept(decoder, text.hidden_size, text.num_hidden_layers, bf16, checkpointing)
    if isinstance(model, AlignedLlavaForConditionalGeneration) and count(model.model.vision_tower):
        vision = model.config.vision_config
        inner = getattr(vision, "intermediate_size", 4 * vision.hidden_size)  # DINOv2 has a ratio
        visual_tokens, tower = patches(vision), 9 * vision.hidden_size + 2 * inner
        kept = _kept(tower, vision.hidden_size, vision.num_hidden_layers, bf16, checkpointing)
        total += batch.images * visual_tokens * kept
    head_weight = model.get_output_embeddings().weight
    return total + (4 * head_weight.numel() if head_weight.requires_grad else 0)  # TRL's head sums in float32


def _kept(elements: int, width: int, layers: int, bf16: bool, checkpointing: int) -> float:
    """Bytes per token: whole layers, and of those computed again the input, and one of them. The stream is float32."""
    size = elements * (2 if bf16 else 4)
    again = -(-layers // checkpointing) if checkpointing else 0
    return (layers - again) * size + again * 4 * width + (size if again else 0)
