"""Measures a model by hooks on its normal forward pass (paper section 4): any VLM, constant memory, mergeable.

Stages: vision encoder output, connector input and output, what layer 0 sees. Layers: the quantities of `inertia.py` of
every decoder layer for visual, text, special, newline and sink tokens. Per-image sums are kept for the bootstrap.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from eval.diagnostics.hooks.decoder_input import at_entry, in_rows, states_of
from eval.diagnostics.hooks.token_masks import Masks
from eval.diagnostics.measure.rotation import QUANTITIES, layer_quantities, sinks
from eval.diagnostics.statistics.moments import Moments
from modeling_aligned_llava.inspection.layer_probe import watch_layers
from modeling_aligned_llava.inspection.model_parts import ModelParts


SERIES = ("visual", "text", "special", "newline", "sink", "visual without sinks")


class Measurement:
    """What is known after some images: `stages` by name, `layers` by series (K, L + 1), sums by image."""

    def __init__(self, layers: int):
        self.depth = layers
        self.stages: dict[str, Moments] = {}
        self.layers = {name: Moments(len(QUANTITIES), layers + 1) for name in SERIES}
        self.final_norm = {name: Moments(2, 1) for name in ("visual", "text")}  # norm and cosine behind the final norm
        self.images: list[dict[str, tuple[Tensor, Tensor]]] = []  # by series: sums and counts (K, L + 1), of one image
        self.stage_images: list[dict[str, tuple[float, int]]] = []
        self.coherence: list[Tensor] = []  # [L] of one image

    def merge(self, other: "Measurement") -> None:
        """Join what another process or batch measured."""
        for name, moments in other.stages.items():
            self.stages.setdefault(name, Moments()).merge(moments)
        for name in SERIES:
            self.layers[name].merge(other.layers[name])
        for name, moments in self.final_norm.items():
            moments.merge(other.final_norm[name])
        self.images += other.images
        self.stage_images += other.stage_images
        self.coherence += other.coherence

    def add_norms(self, stage: str, states: Tensor) -> None:
        """Norms of [..., D], for the table of stages."""
        norms = states.detach().float().norm(dim=-1).flatten()
        self.stages.setdefault(stage, Moments()).add(norms)
        total, count = self.stage_images[-1].get(stage, (0.0, 0))
        self.stage_images[-1][stage] = (total + norms.double().sum().item(), count + norms.numel())


@contextmanager
def measuring(
    model: Any, parts: ModelParts, special_ids: frozenset[int] = frozenset(), into: Measurement | None = None
) -> Iterator[Measurement]:
    """Add every forward pass inside the `with` block to a measurement, one image (or batch of rows) a pass.

    Args:
        special_ids: ids of the tokenizer's special tokens; they are a series of their own.
        into: a measurement to go on with.

    Raises:
        UserError: at the first pass, if images do not enter as tokens.
    """
    measurement = into or Measurement(len(parts.layers))
    one_pass = _Pass(measurement, len(parts.layers))
    handles = [
        model.register_forward_pre_hook(one_pass.begin),
        model.register_forward_hook(one_pass.end),
        parts.connector.register_forward_pre_hook(one_pass.before_connector, with_kwargs=True),
        parts.connector.register_forward_hook(one_pass.behind_connector),
        parts.decoder.register_forward_hook(one_pass.behind_decoder),
    ]
    if parts.vision is not None:
        handles.append(parts.vision.register_forward_hook(one_pass.behind_vision))
    try:
        with at_entry(model, parts, one_pass.entry, special_ids), watch_layers(parts.layers, one_pass.layer):
            yield measurement
    finally:
        for handle in handles:
            handle.remove()


class _Pass:
    """The state of one forward pass."""

    def __init__(self, measurement: Measurement, depth: int):
        self.measurement, self.depth = measurement, depth

    def begin(self, _: Any, args: tuple) -> None:
        self.values: list[Tensor] = []
        self.sinks: list[Tensor] = []
        self.coherence: list[Tensor] = []
        self.previous: Tensor | None = None
        self.measurement.stage_images.append({})

    def behind_vision(self, _: Any, args: tuple, output: Any) -> None:
        states = states_of(output)
        if states is not None:
            self.measurement.add_norms("vision encoder output", states)

    def before_connector(self, _: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        states = states_of([*args, *kwargs.values()])
        if states is not None:
            self.measurement.add_norms("connector input", states)

    def behind_connector(self, _: Any, args: tuple, output: Any) -> None:
        states = states_of(output)
        if states is not None:
            self.measurement.add_norms("connector output", states)

    def entry(self, states: Tensor, masks: Masks) -> None:
        self.masks = masks
        self.first = states.detach().double()
        self.measurement.add_norms("visual tokens at layer 0", states[masks["visual"]])
        self.measurement.add_norms("text tokens at layer 0", states[masks["text"]])

    def layer(self, index: int, before: Tensor, after: Tensor) -> None:
        before, after = in_rows(before.detach()).double(), in_rows(after.detach()).double()
        groups = torch.stack([self.masks[name].double() for name in ("visual", "text")], 1)  # (rows, 2, tokens)
        values, directions = layer_quantities(before, after, self.first, self.previous, groups)
        self.values.append(values)
        self.sinks.append(sinks(before))
        self.coherence.append((directions[:, 0] * directions[:, 1]).sum(-1))
        if index == self.depth - 1:
            last = torch.full_like(values, torch.nan)
            last[QUANTITIES.index("norm")] = after.norm(dim=-1)
            self.values.append(last)
            self.sinks.append(sinks(after))
            self.before_last = before
        self.previous = after

    def behind_decoder(self, _: Any, args: tuple, output: Any) -> None:
        states = states_of(output)
        if states is None or states.shape[-1] != self.first.shape[-1]:
            return
        states = in_rows(states.detach()).double()
        values = torch.stack([states.norm(dim=-1), torch.cosine_similarity(self.before_last, states, dim=-1)])
        for name, moments in self.measurement.final_norm.items():
            moments.add(values[:, None, self.masks[name]])

    def end(self, _: Any, args: tuple, output: Any) -> None:
        values = torch.stack(self.values, 1).cpu()  # (K, L + 1, rows, tokens)
        sink = torch.stack(self.sinks).cpu()  # (L + 1, rows, tokens)
        masks = {name: mask.cpu() for name, mask in self.masks.items()}
        for name, mask in masks.items():
            if mask.any():
                self.measurement.layers[name].add(values[..., mask])
        visual = masks["visual"]
        self.measurement.layers["visual without sinks"].add(values.where(~sink, torch.nan)[..., visual])
        if sink.any():
            self.measurement.layers["sink"].add(values.where(sink, torch.nan)[..., sink.any(0)])
        for row in range(visual.shape[0]):
            image = {name: values[:, :, row, masks[name][row]] for name in ("visual", "text")}
            self.measurement.images.append(
                {n: (v.nansum(-1), v.isfinite().sum(-1, dtype=torch.int32)) for n, v in image.items()}
            )
        self.measurement.coherence += list(torch.stack(self.coherence, -1).cpu())
        del self.first, self.previous, self.before_last
