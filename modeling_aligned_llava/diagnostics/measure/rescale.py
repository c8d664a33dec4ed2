"""Counterfactual: multiply the visual tokens by k at the decoder input, without training, and measure the effects.

If their norm is what makes visual tokens inert (paper section 3), a smaller k must rotate them faster and change what
text reads from them; the divergence of the logits tells how much the output changes.
"""

from collections import defaultdict
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from modeling_aligned_llava.diagnostics.hooks.decoder_input import in_rows, watch_decoder_input
from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of, special_ids, tokenizer_of
from modeling_aligned_llava.diagnostics.hooks.token_masks import Masks
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.measure.attention import attention_weights
from modeling_aligned_llava.diagnostics.statistics.bootstrap import mean_interval
from modeling_aligned_llava.inspection.layer_probe import watch_layers
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts


FACTORS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0)
RESCALE_NUMBERS = ("visual_norm", "visual_cosine", "text_cosine", "mass", "divergence", "accuracy")


class Rescaled:
    """One forward pass with visual tokens multiplied by `factor`; a factor of 1 leaves the model as it is."""

    def __init__(self, model: Any, parts: ModelParts, factor: float, special: frozenset[int]):
        self.model, self.parts, self.factor, self.special = model, parts, factor, special

    def __call__(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Run one pass: visual norm, means over layers of cosines and attention mass, and log-probabilities.

        The log-probabilities [tokens, V] ("logits") and the attention are those of the tokens after the image.
        """
        cosines: dict[str, list[float]] = {"visual": [], "text": []}
        masses: list[float] = []

        def at_decoder_input(states: Tensor, masks: Masks) -> Tensor | None:
            self.masks = masks
            self.norm = self.factor * states[masks["visual"]].float().norm(dim=-1).mean().item()
            if self.factor == 1:
                return None
            return torch.where(masks["visual"][..., None], self.factor * states, states)

        def after_layer(index: int, before: Tensor, after: Tensor) -> None:
            cosine = torch.cosine_similarity(in_rows(before).double(), in_rows(after).double(), dim=-1)
            for name, values in cosines.items():
                values.append(cosine[self.masks[name]].mean().item())

        def on_weights(index: int, found: Tensor) -> None:
            visual, queries = self.masks["visual"][0], self._after_image()
            masses.append(found[0][:, queries][:, :, visual].double().sum(-1).mean().item())

        with (
            watch_decoder_input(self.model, self.parts, at_decoder_input, self.special),
            watch_layers(self.parts.layers, after_layer),
            attention_weights(self.model, self.parts, on_weights),
        ):
            output = self.model(**inputs, use_cache=False)
        logits = getattr(output, "logits", output)
        return {
            "visual_norm": self.norm,
            **{f"{name}_cosine": sum(values) / len(values) for name, values in cosines.items()},
            "mass": sum(masses) / max(1, len(masses)),
            "logits": logits[0, self._after_image()].double().log_softmax(-1),
        }

    def _after_image(self) -> Tensor:
        """Positions of all tokens after the image, to the end of the prompt."""
        visual = self.masks["visual"][0].nonzero().flatten()
        length = self.masks["visual"].shape[1]
        return torch.arange(int(visual[-1]) + 1, length, device=visual.device)


@torch.inference_mode()
def rescale(
    model: Any, processor: Any, sample: list[ImageQuestion], factors: list[float], connector: str | None = None
) -> dict[float, dict[str, Any]]:
    """`{factor: {number: {"mean", "ci95", "images"}}}`; `divergence` is KL(unchanged || rescaled), nats per token.

    `accuracy` is over the images with a known one-word answer: does the likeliest first token begin that word?
    """
    parts, special = model_parts(model, connector), special_ids(processor)
    tokenizer = tokenizer_of(processor)
    values: dict[float, dict[str, list[float]]] = {factor: defaultdict(list) for factor in factors}
    for image in track(sample, description="rescale"):
        inputs = inputs_of(processor, image, model.device, model.dtype)
        untouched = Rescaled(model, parts, 1.0, special)(inputs)["logits"]
        for factor in factors:
            found = Rescaled(model, parts, factor, special)(inputs)
            logits = found.pop("logits")
            divergence = (untouched.exp() * (untouched - logits)).sum(-1).mean().item()
            for name, value in {**found, "divergence": divergence}.items():
                values[factor][name].append(value)
            if image.answer is not None:
                word = tokenizer.decode([int(logits[-1].argmax())]).strip().lower()
                values[factor]["accuracy"].append(float(bool(word) and image.answer.lower().startswith(word)))
    return {
        factor: {
            name: {
                "mean": sum(column) / len(column),
                "ci95": mean_interval(torch.tensor(column)),
                "images": len(column),
            }
            for name, column in columns.items()
        }
        for factor, columns in values.items()
    }
