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
    """

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}  # modality -> number of tokens, norms [L + 1], cosines [L]

    def records(self) -> dict[str, dict[str, Any]]:
        """Return `{"text" | "visual": {"tokens": n, "norm": [L + 1], "cosine": [L]}}`, without empty modalities."""
        return {
            name: {"tokens": int(n), "norm": (norms / n).tolist(), "cosine": (cosines / n).tolist()}
            for name, (n, norms, cosines) in self.sums.items()
            if n
        }

    def begin(self, visual: Tensor, text: Tensor) -> None:
        """Start a pass, with the masks [rows, tokens] of its tokens."""
        self.visual, self.text = visual, text
        self.states: list[tuple[Tensor, Tensor]] = []  # norm, and whether it is a sink: each [rows, tokens]
        self.cosines: list[Tensor] = []  # each [rows, tokens]

    def add(self, states: Tensor) -> None:
        states = states.detach().float()
        self.states.append((torch.linalg.vector_norm(states, dim=-1).double(), sinks(states)))

    def add_cosine(self, before: Tensor, after: Tensor) -> None:
        # 1 - cos can be 1e-5 in deep layers, which bfloat16 and nearly float32 cannot resolve
        self.cosines.append(torch.cosine_similarity(before.detach().double(), after.detach().double(), dim=-1))

    def end(self, model: Any) -> None:
        """Add the pass to the sums.

        Raises:
            UserError: states of one of its tokens are not finite.
        """
        norms, sunk, cosines = (
            torch.stack([each.to(self.text.device) for each in column])  # (L + 1 or L, rows, tokens)
            for column in (*zip(*self.states, strict=True), self.cosines)
        )
        for layer, sizes in enumerate(norms):
            check_finite(sizes[self.text | self.visual], model, f"states at decoder layer {layer}")
        for name, mask in (("text", self.text & ~sunk.any(0)), ("visual", self.visual)):
            found = [mask.sum(), norms[:, mask].sum(1), cosines[:, mask].sum(1)]
            known = self.sums.get(name)
            self.sums[name] = [a + b for a, b in zip(known, found, strict=True)] if known else found


@contextmanager
def probe_layers(model: PreTrainedModel, special: frozenset[int] = frozenset()) -> Iterator[LayerProfile]:
    """Collect a profile from every forward pass with `input_ids` inside the `with` block, without padding.

    It keeps sums alone. Probe without gradients: a pass recomputed for gradient checkpointing would count twice.

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
    profile = LayerProfile()

    def before_model(_, args, kwargs):
        ids, mask = kwargs["input_ids"] if "input_ids" in kwargs else args[0], kwargs.get("attention_mask")
        visual, real = ids == image_token, torch.ones_like(ids).bool() if mask is None else mask.bool()
        profile.begin(real & visual, real & ~visual & ~is_special(ids, special))

    def after_layer(index: int, before: Tensor, after: Tensor) -> None:
        profile.add(before)
        profile.add_cosine(before, after)
        if index == len(layers) - 1:
            profile.add(after)

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
