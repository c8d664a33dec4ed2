"""Norm and direction of hidden states by layer and modality (paper Figs. 3-5), by hooks on any decoder.

Entry l of `norm` is the mean L2 norm of the input of decoder layer l; the last entry is that of the last layer's
output, before the final norm (which `output_hidden_states` would include). Entry l of `cosine` compares input and
output of layer l.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from modeling_aligned_llava.inspection.finite import check_finite
from modeling_aligned_llava.inspection.model_parts import image_token_id
from modeling_aligned_llava.inspection.text_stream import is_special, sinks


class LayerProfile:
    """Running sums over tokens by layer and modality, in float64, on the model's device until read.

    Text means content, as in the diagnostics: special tokens, and tokens that are a sink in any layer, do not count.

    Args:
        special: ids of `special_ids`.
    """

    def __init__(self, special: frozenset[int]) -> None:
        self.special = special
        self.sums: dict[str, list[Tensor]] = {}  # modality -> number of tokens, norms [L + 1], cosines [L]

    def records(self) -> dict[str, dict[str, Any]]:
        """Return `{"text" | "visual": {"tokens": n, "norm": [L + 1], "cosine": [L]}}`, without empty modalities."""
        return {
            name: {"tokens": int(n), "norm": (norms / n).tolist(), "cosine": (cosines / n).tolist()}
            for name, (n, norms, cosines) in self.sums.items()
            if n
        }

    def begin(self, input_ids: Tensor, attention_mask: Tensor | None, image_token_id: int) -> None:
        visual = input_ids == image_token_id
        real = torch.ones_like(visual) if attention_mask is None else attention_mask.bool()
        # masks, norms, cosines and sinks: each [rows, tokens]
        self.masks = {"text": real & ~visual & ~is_special(input_ids, self.special), "visual": real & visual}
        self.norms: list[Tensor] = []
        self.cosines: list[Tensor] = []
        self.sinks: list[Tensor] = []

    def add_norm(self, states: Tensor) -> None:
        states = states.detach().float()
        self.norms.append(torch.linalg.vector_norm(states, dim=-1).double())
        self.sinks.append(sinks(states))

    def add_cosine(self, before: Tensor, after: Tensor) -> None:
        # 1 - cos can be 1e-5 in deep layers, which bfloat16 and nearly float32 cannot resolve
        self.cosines.append(torch.cosine_similarity(before.detach().double(), after.detach().double(), dim=-1))

    def end(self, model: Any) -> None:
        """Add the pass to the sums.

        Raises:
            UserError: states of one of its tokens are not finite.
        """
        device = self.masks["text"].device
        norms, cosines, sunk = (
            torch.stack([each.to(device) for each in of_layers])  # (L + 1 or L, rows, tokens)
            for of_layers in (self.norms, self.cosines, self.sinks)
        )
        for layer, sizes in enumerate(norms):
            check_finite(sizes[self.masks["text"] | self.masks["visual"]], model, f"states at decoder layer {layer}")
        self.masks["text"] &= ~sunk.any(0)
        for name, mask in self.masks.items():
            found = [mask.sum(), norms[:, mask].sum(1), cosines[:, mask].sum(1)]
            before = self.sums.get(name, [torch.zeros_like(each) for each in found])
            self.sums[name] = [total + each for total, each in zip(before, found, strict=True)]


@contextmanager
def probe_layers(model: PreTrainedModel, special: frozenset[int] = frozenset()) -> Iterator[LayerProfile]:
    """Collect a profile from every forward pass with `input_ids` inside the `with` block, without padding.

    It keeps sums alone: constant memory. Probe without gradients, because a pass recomputed for gradient checkpointing
    would count twice.

    Args:
        special: ids of text that is no content (`special_ids`).

    Raises:
        ValueError: the decoder has no list of layers, or the config names no image token.
        UserError: in a pass whose states are not finite.
    """
    layers = getattr(model.get_decoder(), "layers", None)
    image_token = image_token_id(model.config)
    if not isinstance(layers, nn.ModuleList) or image_token is None:
        raise ValueError(f"{type(model).__name__} has no decoder layers or no image token id to probe")
    profile = LayerProfile(special)

    def before_model(_, args, kwargs):
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        profile.begin(ids, kwargs.get("attention_mask"), image_token)

    def after_layer(index: int, before: Tensor, after: Tensor) -> None:
        profile.add_norm(before)
        profile.add_cosine(before, after)
        if index == len(layers) - 1:
            profile.add_norm(after)

    handles = [
        model.register_forward_pre_hook(before_model, with_kwargs=True),
        model.register_forward_hook(lambda *_: profile.end(model)),
    ]
    try:
        with watch_layers(layers, after_layer):
            yield profile
    finally:
        for handle in handles:
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
