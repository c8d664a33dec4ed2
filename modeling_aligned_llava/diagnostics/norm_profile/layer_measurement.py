"""Measures norms and rotations in any vision-language model by hooks on its forward pass (paper section 4).

`measuring` adds every forward pass to a `Measurement`. Stages are norms before the decoder: vision encoder output,
connector input and output, layer 0's input. Layers are the quantities of `rotation.py` in every decoder layer, for
visual, text, special, newline and sink tokens; text with a massive activation in any layer counts as a sink and not as
text (`content_text`). Only moments, sums by image (for the bootstrap) and the states of a few hundred visual tokens
(`visual_information`) are kept, so memory hardly grows.

Shapes: K quantities, L layers, D dimensions; L + 1 where the output of the last layer counts too (for "norm" alone).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.diagnostics.instruments.decoder_states import (
    states_of,
    watch_decoder_input,
    without_padding,
)
from modeling_aligned_llava.diagnostics.instruments.token_masks import Masks
from modeling_aligned_llava.diagnostics.instruments.token_statistics import Moments
from modeling_aligned_llava.diagnostics.norm_profile.rotation import QUANTITIES, layer_quantities
from modeling_aligned_llava.diagnostics.norm_profile.visual_information import (
    ByRows,
    Made,
    TokenSample,
    features_of,
)
from modeling_aligned_llava.inspection.forward_pass import hooked, in_rows, watch_layers
from modeling_aligned_llava.inspection.layer_probe import LayerPass
from modeling_aligned_llava.inspection.model_parts import ModelParts
from modeling_aligned_llava.inspection.text_stream import common_factor


NORM = QUANTITIES.index("norm")
SERIES = ("visual", "text", "special", "newline", "sink", "visual without sinks")


class Measurement:
    """Statistics over all tokens so far, and sums of each image.

    Attributes:
        stages: norms by stage.
        layers: moments [K, L + 1] by series of tokens.
        final_norm: norm and cosine [2, 1] after the final norm, by modality.
        images: of each image, sums and counts [K, L + 1] by modality.
        stage_images: of each image, sum and count of the norms by stage.
        coherence: of each image, the mean cosine [L] between the rotations of visual and text tokens.
        text_scales: of each pass, text at layer 0 over the output of the embedding module; None: no one factor.
        sample: visual tokens of all layers with their features.
    """

    def __init__(self, layers: int, images: int):
        self.depth = layers
        self.stages: dict[str, Moments] = {}
        self.layers = {name: Moments(len(QUANTITIES), layers + 1) for name in SERIES}
        self.final_norm = {name: Moments(2, 1) for name in ("visual", "text")}
        self.images: list[dict[str, tuple[Tensor, Tensor]]] = []
        self.stage_images: list[dict[str, tuple[float, int]]] = []
        self.coherence: list[Tensor] = []
        self.text_scales: list[float | None] = []
        self.sample = TokenSample(images)

    def text_scale(self) -> float | None:
        """What the model multiplies text embeddings by on their way to layer 0 (Granite's `embedding_multiplier`).

        None: something else happens to them there, such as the positions that OPT adds.
        """
        known = [scale for scale in self.text_scales if scale is not None]
        return median(known) if known else None if self.text_scales else 1.0

    def add_norms(self, stage: str, states: Tensor | None) -> None:
        """Add the norms of states [..., D] to a stage."""
        if states is None:
            return
        norms = states.detach().float().norm(dim=-1).flatten()
        self.stages.setdefault(stage, Moments()).add(norms)
        total, count = self.stage_images[-1].get(stage, (0.0, 0))
        self.stage_images[-1][stage] = (total + norms.double().sum().item(), count + norms.numel())


@contextmanager
def measuring(
    model: Any, parts: ModelParts, special_ids: frozenset[int] = frozenset(), images: int = 1
) -> Iterator[Measurement]:
    """Add every forward pass inside the `with` block to a measurement, one image (or batch of rows) per pass.

    Args:
        special_ids: ids of the tokenizer's special tokens, which are a series of their own.
        images: how many passes there will be.

    Raises:
        UserError: in the first pass, if images do not enter as tokens.
    """
    measurement = Measurement(len(parts.layers), images)
    one_pass = _Pass(measurement)
    handles = [
        model.register_forward_pre_hook(one_pass.begin),
        model.register_forward_hook(one_pass.end),
        parts.embedding.register_forward_hook(one_pass.after_embedding),
        parts.decoder.register_forward_hook(one_pass.after_decoder),
    ]
    for connector in parts.connectors:
        handles.append(connector.register_forward_pre_hook(one_pass.before_connector, with_kwargs=True))
        handles.append(connector.register_forward_hook(one_pass.after_connector, with_kwargs=True))
    if parts.vision is not None:
        handles.append(parts.vision.register_forward_hook(one_pass.after_vision, with_kwargs=True))
    with (
        hooked(handles),
        watch_decoder_input(model, parts, one_pass.at_decoder_input, special_ids),
        watch_layers(parts.layers, one_pass.layers.after_layer),
    ):
        yield measurement


class _Pass:
    """The hooks of one forward pass, in the order of the data flow, and what they keep until its end."""

    def __init__(self, measurement: Measurement):
        self.measurement, self.layers = measurement, LayerPass(measurement.depth, self.measure)
        self.by_rows = ByRows()

    def begin(self, _: Any, args: tuple) -> None:
        self.coherence: list[Tensor] = []  # each [rows]
        self.embedded: list[Tensor] = []  # each [rows, tokens, D]
        self.made: list[Made | None] = []
        self.sampled: list[Tensor] = []  # each [places, D]
        self.measurement.stage_images.append({})

    def after_embedding(self, _: Any, args: tuple, output: Tensor) -> None:
        self.embedded.append(in_rows(output.detach()))

    def after_vision(self, _: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        if (states := states_of(output)) is not None:
            self.measurement.add_norms("vision encoder output", without_padding(states, kwargs))

    def before_connector(self, _: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        self.measurement.add_norms("connector input", states_of([*args, *kwargs.values()]))

    def after_connector(self, connector: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        self.measurement.add_norms("connector output", states_of(output))
        self.made.append(self.by_rows(connector, args, kwargs, output))

    def at_decoder_input(self, states: Tensor, masks: Masks) -> None:
        self.layers.begin(masks)
        self.first = states.detach().double()
        self.measurement.add_norms("visual tokens at layer 0", states[masks["visual"]])
        self.places = self.measurement.sample.places(masks["visual"])
        embedded = self._embedded_text(states, masks)
        if embedded is not None and len(embedded):
            self.measurement.text_scales.append(common_factor(embedded, states[masks["text"]]))

    def _embedded_text(self, states: Tensor, masks: Masks) -> Tensor | None:
        """What the embedding module made of the text, [text tokens, D]; None if its calls cannot be told apart."""
        if self.embedded and self.embedded[-1].shape[:2] == states.shape[:2]:
            return self.embedded[-1][masks["text"]]
        others = ~(masks["visual"] | masks["newline"])  # a model that expands its input embeds these alone
        rows = torch.cat([embedded.flatten(0, 1) for embedded in self.embedded] or [states[others][:0]])
        return rows[masks["text"][others]] if len(rows) == int(others.sum()) else None

    def measure(self, before: Tensor, after: Tensor | None) -> Tensor:
        if self.places is not None and after is not None:
            self.sampled.append(before[tuple(self.places.to(before.device))])
        before = before.double()
        if after is None:  # the output of the last layer: the last point of the norm, and of nothing else
            last = before.new_full((len(QUANTITIES), *before.shape[:2]), torch.nan)
            last[NORM] = before.norm(dim=-1)
            return last
        after = after.double()
        groups = torch.stack([self.layers.masks[name].double() for name in ("visual", "text")], 1)  # [rows, 2, tokens]
        # values [K, rows, tokens], directions [rows, 2, D]
        values, directions = layer_quantities(before, after, groups)
        self.coherence.append((directions[:, 0] * directions[:, 1]).sum(-1))
        self.before_last = before
        return values

    def after_decoder(self, _: Any, args: tuple, output: Any) -> None:
        states = states_of(output)
        if states is None or states.shape[-1] != self.first.shape[-1]:
            return
        states = in_rows(states.detach()).double()
        # [2, rows, tokens]
        values = torch.stack([states.norm(dim=-1), torch.cosine_similarity(self.before_last, states, dim=-1)])
        for name, moments in self.measurement.final_norm.items():
            moments.add(values[:, None, self.layers.masks[name]])

    def end(self, _: Any, args: tuple, output: Any) -> None:
        values, sink, masks = self.layers.end()
        values, sink, masks = values.cpu(), sink.cpu(), {name: mask.cpu() for name, mask in masks.items()}
        self.measurement.add_norms("text tokens at layer 0", self.first[masks["text"].to(self.first.device)])
        # 1) Moments over tokens, by series
        for name, mask in masks.items():
            if mask.any():
                self.measurement.layers[name].add(values[..., mask])
        visual = masks["visual"]
        self.measurement.layers["visual without sinks"].add(values.where(~sink, torch.nan)[..., visual])
        if sink.any():
            self.measurement.layers["sink"].add(values.where(sink, torch.nan)[..., sink.any(0)])
        # 2) Sums of each image, for the bootstrap
        for row in range(visual.shape[0]):
            image = {name: values[:, :, row, masks[name][row]] for name in ("visual", "text")}
            self.measurement.images.append(
                {name: (v.nansum(-1), v.isfinite().sum(-1, dtype=torch.int32)) for name, v in image.items()}
            )
        self.measurement.coherence += list(torch.stack(self.coherence, -1).cpu())
        if self.places is not None:
            self.measurement.sample.add(features_of(self.sampled[0], self.made), self.sampled)
        del self.first, self.before_last
