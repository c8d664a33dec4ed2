"""Does the gradient vanish (paper section 5.1)? One forward and backward pass without a norm, with it, and with GWC.

The norm is applied to the visual tokens at the decoder input, so that any checkpoint can be measured and all variants
share its weights. A Pre-Norm decoder divides its input by the norm: dL/dy grows as 1 / |y| and cancels the small gain.
"""

from collections import defaultdict
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from modeling_aligned_llava.diagnostics.hooks.decoder_input import watch_decoder_input
from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of, special_ids
from modeling_aligned_llava.diagnostics.hooks.token_masks import Masks
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.statistics.bootstrap import mean_interval
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm, target_gain


VARIANTS = ("none", "norm", "norm-gwc")
GROUPS = ("connector", "vision", "language", "norm")


def gradients_of(
    model: Any, parts: ModelParts, variant: str, inputs: dict[str, Any], text_norm: float, special: frozenset[int]
) -> dict[str, float]:
    """For one image: the gradient norm of each parameter group, and |y|, |dL/dy| and |dL/dx| at the visual tokens.

    The loss is next-token prediction on the text after the image. x is the connector's output, y what layer 0 sees.
    """
    kept: dict[str, Tensor] = {}
    norms: list[GlobalWeightCompensatedLayerNorm] = []

    def at_decoder_input(states: Tensor, masks: Masks) -> Tensor:
        x = states[masks["visual"]]
        if not norms and variant != "none":
            gain = target_gain(text_norm, x.shape[-1])
            exponent = 1.0 if variant == "norm-gwc" else 0.0
            norm = GlobalWeightCompensatedLayerNorm(x.shape[-1], gain_init=gain, compensation_exponent=exponent)
            norms.append(norm.to(x.device).train())
        y = norms[0](x) if norms else x * 1.0
        for name, states_ in (("x", x), ("y", y)):
            states_.retain_grad()
            kept[name] = states_
        kept["queries"] = torch.arange(int(masks["visual"][0].nonzero()[-1]) + 1, states.shape[1])
        return states.masked_scatter(masks["visual"][..., None], y)

    model.zero_grad()
    with watch_decoder_input(model, parts, at_decoder_input, special):
        output = model(**inputs, use_cache=False)
    logits = getattr(output, "logits", output)
    targets = inputs["input_ids"][0, -len(kept["queries"]) + 1 :]
    loss = F.cross_entropy(logits[0, -len(kept["queries"]) : -1].float(), targets)
    loss.backward()
    found = {"loss": loss.item(), "|y|": _mean_norm(kept["y"])}
    found |= {f"|dL/d{name}|": _mean_norm(kept[name].grad) for name in ("y", "x")}
    groups: dict[str, list[Any]] = {"norm": list(norms[0].parameters()) if norms else [], **_groups(model, parts)}
    for name in GROUPS:
        squares = [p.grad.double().square().sum().item() for p in groups[name] if p.grad is not None]
        if squares:
            found[name] = sum(squares) ** 0.5
    return found


def _mean_norm(states: Any) -> float:
    return states.detach().double().norm(dim=-1).mean().item()


def _groups(model: Any, parts: ModelParts) -> dict[str, list[Tensor]]:
    """Put every parameter in one group; a connector inside the vision module does not count as vision."""
    connector = {id(p) for p in parts.connector.parameters()}
    vision = {id(p) for p in parts.vision.parameters()} - connector if parts.vision is not None else set()
    groups: dict[str, list[Tensor]] = {"connector": [], "vision": [], "language": []}
    for parameter in model.parameters():
        kind = "connector" if id(parameter) in connector else "vision" if id(parameter) in vision else "language"
        groups[kind].append(parameter)
    return groups


def gradients(
    model: Any, processor: Any, sample: list[ImageQuestion], connector: str | None = None
) -> dict[str, dict[str, Any]]:
    """`{variant: {number: {"mean", "ci95", "over_none", "over_none_ci95"}}}` over images; weights are unchanged."""
    parts, special = model_parts(model, connector), special_ids(processor)
    text_norm = mean_embedding_norm(parts.embedding)
    model.requires_grad_(True)
    values: dict[str, dict[str, list[float]]] = {variant: defaultdict(list) for variant in VARIANTS}
    for image in track(sample, description="gradients"):
        inputs = inputs_of(processor, image, model.device, model.dtype)
        for variant in VARIANTS:
            for name, value in gradients_of(model, parts, variant, inputs, text_norm, special).items():
                values[variant][name].append(value)
    model.zero_grad()
    found: dict[str, dict[str, Any]] = {}
    for variant, columns in values.items():
        found[variant] = {}
        for name, column in columns.items():
            numbers = torch.tensor(column, dtype=torch.float64)
            found[variant][name] = {"mean": numbers.mean().item(), "ci95": mean_interval(numbers)}
            if name in values["none"]:
                ratios = (numbers / torch.tensor(values["none"][name], dtype=torch.float64)).log()
                found[variant][name]["over_none"] = ratios.mean().exp().item()
                found[variant][name]["over_none_ci95"] = mean_interval(ratios, torch.exp)
    return found
