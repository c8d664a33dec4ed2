"""Numbers of every token by decoder layer, with hooks on any decoder: for the probe of training and for profiles.

`LayerPass` collects them in one forward pass. Its point l is the input of decoder layer l; the last point is the
output of the last layer, before the final norm (which `output_hidden_states` would include). `probe_layers` has the
means of norm and cosine by modality (paper Figs. 3-5).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from modeling_aligned_llava.inspection.content_text import content_text, is_special, sinks
from modeling_aligned_llava.inspection.forward_pass import check_finite, hooked, watch_layers
from modeling_aligned_llava.inspection.model_parts import model_parts


class LayerPass:
    """K numbers of each token at all points of one forward pass, and which tokens are sinks there.

    Args:
        depth: L, the number of decoder layers.
        measure: `measure(before, after)` gives the numbers [K, rows, tokens] of a layer with this input and output,
            [rows, tokens, D]; after the last layer, those of its output alone, for `after` None.
    """

    def __init__(self, depth: int, measure: Callable[[Tensor, Tensor | None], Tensor]):
        self.depth, self.measure = depth, measure

    def begin(self, masks: dict[str, Tensor]) -> None:
        """Start a pass, with [rows, tokens] masks: "visual", "text" and "special" among others."""
        self.masks = masks
        self._values: list[Tensor] = []  # each [K, rows, tokens]
        self._sunk: list[Tensor] = []  # each [rows, tokens]

    def after_layer(self, layer: int, before: Tensor, after: Tensor) -> None:
        self._add(before.detach(), after.detach())
        if layer == self.depth - 1:
            self._add(after.detach(), None)

    def _add(self, states: Tensor, after: Tensor | None) -> None:
        self._values.append(self.measure(states, after))
        self._sunk.append(sinks(states.float()))

    def end(self) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Values [K, L + 1, rows, tokens], sinks [L + 1, rows, tokens], and the masks with content as "text"."""
        device = self.masks["text"].device  # that of the ids: layers may be on several
        values = torch.stack([point.to(device) for point in self._values], 1)
        sunk = torch.stack([point.to(device) for point in self._sunk])
        return values, sunk, {**self.masks, "text": content_text(self.masks["text"], self.masks["special"], sunk)}


class LayerMeans:
    """Means of norm and cosine over tokens by layer and modality: sums in float64, on the model's device."""

    def __init__(self) -> None:
        self.sums: dict[str, list[Tensor]] = {}  # modality -> number of tokens, sums of norm and cosine [2, L + 1]

    def records(self) -> dict[str, dict[str, Any]]:
        """Return `{"text" | "visual": {"tokens": n, "norm": [L + 1], "cosine": [L]}}`, without empty modalities.

        Entry l of `norm` is the mean L2 norm at point l; entry l of `cosine` compares input and output of layer l.
        """
        means = {name: (int(count), sums / count) for name, (count, sums) in self.sums.items() if count}
        return {
            name: {"tokens": count, "norm": norm.tolist(), "cosine": cosine[:-1].tolist()}
            for name, (count, (norm, cosine)) in means.items()
        }

    def add(self, values: Tensor, masks: dict[str, Tensor]) -> None:
        """Add norm and cosine [2, L + 1, rows, tokens] of one pass."""
        for name in ("text", "visual"):
            sums = [masks[name].sum(), values[..., masks[name]].sum(-1)]
            known = self.sums.get(name)
            self.sums[name] = [a + b for a, b in zip(known, sums, strict=True)] if known else sums


@contextmanager
def probe_layers(model: PreTrainedModel, special: frozenset[int] = frozenset()) -> Iterator[LayerMeans]:
    """Collect means from every forward pass with `input_ids` inside the `with` block, without padding.

    It keeps sums alone. Probe without gradients: a pass recomputed for gradient checkpointing would count twice.

    Args:
        special: ids of text that is no content (`special_ids`).

    Raises:
        UserError: the model has no visual tokens or, in a pass, states that are not finite.
    """
    parts = model_parts(model)
    means, one_pass = LayerMeans(), LayerPass(len(parts.layers), _norm_and_cosine)

    def before_model(_, args, kwargs):
        ids, mask = kwargs["input_ids"] if "input_ids" in kwargs else args[0], kwargs.get("attention_mask")
        visual, real = ids == parts.image_token_id, torch.ones_like(ids).bool() if mask is None else mask.bool()
        one_pass.begin({"visual": real & visual, "text": real & ~visual, "special": is_special(ids, special)})

    def after_model(*_):
        values, _sunk, masks = one_pass.end()
        for layer, norms in enumerate(values[0]):
            check_finite(norms[masks["visual"] | one_pass.masks["text"]], model, f"states at decoder layer {layer}")
        means.add(values, masks)

    handles = [
        model.register_forward_pre_hook(before_model, with_kwargs=True),
        model.register_forward_hook(after_model),
    ]
    with hooked(handles), watch_layers(parts.layers, one_pass.after_layer):
        yield means


def _norm_and_cosine(before: Tensor, after: Tensor | None) -> Tensor:
    norm = torch.linalg.vector_norm(before.float(), dim=-1).double()
    if after is None:
        return torch.stack([norm, torch.full_like(norm, torch.nan)])
    # 1 - cos can be 1e-5 in deep layers, which bfloat16 and nearly float32 cannot resolve
    return torch.stack([norm, torch.cosine_similarity(before.double(), after.double(), dim=-1)])
