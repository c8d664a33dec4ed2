"""Norm and direction of hidden states by layer and modality (paper Figs. 3-5), by hooks on any decoder.

Entry l of `norm` is the mean L2 norm of the input of decoder layer l; the last entry is that of the last layer's
output, before the final norm (which `output_hidden_states` would include). Entry l of `cosine` compares input and
output of layer l.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from modeling_aligned_llava.inspection.model_parts import image_token_id


MODALITIES = ("text", "visual")


@dataclass
class LayerProfile:
    """Running sums over tokens by layer [L + 1] and modality [2], in float64, on the model's device until read."""

    masks: Tensor | None = None  # (2, rows, tokens): text and visual tokens of the current batch
    norm_sums: dict[int, Tensor] = field(default_factory=dict)
    cosine_sums: dict[int, Tensor] = field(default_factory=dict)
    counts: Tensor | None = None

    def records(self) -> dict[str, dict[str, Any]]:
        """Return `{"text" | "visual": {"tokens": n, "norm": [L + 1], "cosine": [L]}}`, without empty modalities."""
        if self.counts is None:
            return {}
        norms = torch.stack([self.norm_sums[i] for i in sorted(self.norm_sums)]).cpu()  # (L + 1, 2)
        cosines = torch.stack([self.cosine_sums[i] for i in sorted(self.cosine_sums)]).cpu()  # (L, 2)
        return {
            name: {"tokens": int(n), "norm": (norms[:, i] / n).tolist(), "cosine": (cosines[:, i] / n).tolist()}
            for i, (name, n) in enumerate(zip(MODALITIES, self.counts.tolist(), strict=True))
            if n
        }

    def begin(self, input_ids: Tensor, attention_mask: Tensor | None, image_token_id: int) -> None:
        visual = input_ids == image_token_id
        real = torch.ones_like(visual) if attention_mask is None else attention_mask.bool()
        self.masks = torch.stack([real & ~visual, real & visual])
        counts = self.masks.sum((1, 2))
        self.counts = counts if self.counts is None else self.counts + counts

    def add_norm(self, layer: int, states: Tensor) -> None:
        values = torch.linalg.vector_norm(states.detach().float(), dim=-1).double()
        self._add(self.norm_sums, layer, values)

    def add_cosine(self, layer: int, before: Tensor, after: Tensor) -> None:
        # 1 - cos can be 1e-5 in deep layers, which bfloat16 and nearly float32 cannot resolve
        values = torch.cosine_similarity(before.detach().double(), after.detach().double(), dim=-1)
        self._add(self.cosine_sums, layer, values)

    def _add(self, sums: dict[int, Tensor], layer: int, values: Tensor) -> None:
        assert self.masks is not None
        total = (values * self.masks.to(values.device)).sum((1, 2))
        sums[layer] = sums[layer] + total if layer in sums else total


@contextmanager
def probe_layers(model: PreTrainedModel) -> Iterator[LayerProfile]:
    """Collect a profile from every forward pass with `input_ids` inside the `with` block, without padding.

    It keeps sums alone: constant memory, and no waiting for the device. Probe without gradients, because a pass
    recomputed for gradient checkpointing would count twice.

    Raises:
        ValueError: the decoder has no list of layers, or the config names no image token.
    """
    layers = getattr(model.get_decoder(), "layers", None)
    image_token = image_token_id(model.config)
    if not isinstance(layers, nn.ModuleList) or image_token is None:
        raise ValueError(f"{type(model).__name__} has no decoder layers or no image token id to probe")
    profile = LayerProfile()

    def before_model(_, args, kwargs):
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        profile.begin(ids, kwargs.get("attention_mask"), image_token)

    def after_layer(index: int, before: Tensor, after: Tensor) -> None:
        profile.add_norm(index, before)
        profile.add_cosine(index, before, after)
        if index == len(layers) - 1:
            profile.add_norm(index + 1, after)

    handle = model.register_forward_pre_hook(before_model, with_kwargs=True)
    try:
        with watch_layers(layers, after_layer):
            yield profile
    finally:
        handle.remove()


@contextmanager
def watch_layers(layers: nn.ModuleList, look: Callable[[int, Tensor, Tensor], None]) -> Iterator[None]:
    """Call `look(layer, before, after)` with input and output of every decoder layer, [rows, tokens, D]."""

    def hook(index: int, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        after = output[0] if isinstance(output, tuple) else output
        look(index, before, after)

    handles = [
        layer.register_forward_hook(
            lambda _, args, kwargs, output, index=index: hook(index, args, kwargs, output), with_kwargs=True
        )
        for index, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
