"""Does the gradient vanish (paper section 5.1)? One forward and backward pass without a norm, with it, and with GWC.

The norm is put on the connector's output, where `align` puts it, so that any checkpoint can be measured and all
variants share its weights. A Pre-Norm decoder divides its input by the norm: dL/dy grows as 1 / |y| and cancels the
small gain.
"""

from collections import defaultdict
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from modeling_aligned_llava.diagnostics.hooks.decoder_input import watch_decoder_input
from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of, tokenizer_of, told
from modeling_aligned_llava.diagnostics.hooks.token_masks import Masks
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.statistics.bootstrap import mean_interval
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.causality import sees_targets
from modeling_aligned_llava.inspection.finite import check_finite
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts
from modeling_aligned_llava.inspection.text_stream import special_ids
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm, target_gain


VARIANTS = ("none", "norm", "norm-gwc")
GROUPS = ("connector", "vision", "language", "norm")


def gradients_of(
    model: Any, parts: ModelParts, variant: str, inputs: dict[str, Any], text_norm: float, special: frozenset[int]
) -> dict[str, float]:
    """For one image: the gradient norm of each parameter group, and |y|, |dL/dy| and |dL/dx| at the visual tokens.

    The loss is next-token prediction on the text after the image. x is the connector's output, y what layer 0 sees.

    Raises:
        UserError: states or gradients are not finite, or the decoder sees the tokens that it should predict.
    """
    exponent = {"norm": 0.0, "norm-gwc": 1.0}.get(variant)
    norms: dict[Any, GlobalWeightCompensatedLayerNorm] = {}  # by connector
    outputs: list[Tensor] = []
    entering: list[tuple[Tensor, Tensor]] = []  # states [1, tokens, D] and where they are visual

    def normalised(connector: Any, output: Any) -> Any:
        if isinstance(output, list | tuple):
            return type(output)(normalised(connector, each) for each in output)
        if not isinstance(output, Tensor):
            if getattr(output, "last_hidden_state", None) is not None:
                output.last_hidden_state = normalised(connector, output.last_hidden_state)
            return output
        if output.shape[-1] != parts.embedding.embedding_dim:
            return output  # weights of attention
        output.requires_grad_().retain_grad()
        outputs.append(output)
        if exponent is None:
            return output
        if connector not in norms:
            gain, width = target_gain(text_norm, output.shape[-1]), output.shape[-1]
            norm = GlobalWeightCompensatedLayerNorm(width, gain_init=gain, compensation_exponent=exponent)
            norms[connector] = norm.to(output.device).train()
        return norms[connector](output)

    def at_decoder_input(states: Tensor, masks: Masks) -> Tensor:
        states.retain_grad()
        entering.append((states, masks["visual"]))
        return states

    model.zero_grad()
    handles = [each.register_forward_hook(lambda module, _, out: normalised(module, out)) for each in parts.connectors]
    try:
        with watch_decoder_input(model, parts, at_decoder_input, special):
            output = model(**inputs, use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    ((states, visual),) = entering
    if not outputs:
        raise UserError(f"{model.config.model_type}: its connector gives nothing of the decoder's width")
    text = states.shape[1] - int(visual[0].nonzero()[-1]) - 1  # tokens after the image
    logits = getattr(output, "logits", output)
    loss = F.cross_entropy(logits[0, -text:-1].float(), inputs["input_ids"][0, -text + 1 :])
    if variant == "none" and sees_targets(model, inputs, text - 1):
        raise UserError(f"{model.config.model_type}: no gradients: its decoder sees the tokens that it predicts")
    loss.backward()
    gradient: Any = states.grad
    found = {"loss": loss.item(), "|y|": _mean_norm(states[visual]), "|dL/dy|": _mean_norm(gradient[visual])}
    found["|dL/dx|"] = _mean_norm(torch.cat([each.grad.flatten(0, -2) for each in outputs if each.grad is not None]))
    of_norms = [parameter for norm in norms.values() for parameter in norm.parameters()]
    groups: dict[str, list[Any]] = {"norm": of_norms, **_groups(model, parts)}
    for name in GROUPS:
        squares = [p.grad.double().square().sum().item() for p in groups[name] if p.grad is not None]
        if squares:
            found[name] = sum(squares) ** 0.5
    check_finite(torch.tensor(list(found.values())), model, "loss and gradients")
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
    """`{variant: {number: {"mean", "ci95", "over_none", "over_none_ci95"}}}` over images; weights are unchanged.

    Raises:
        UserError: the weights are quantized or in float16, or as for `gradients_of`.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        raise UserError(f"{model.config._name_or_path} is quantized: gradients of its parts need whole weights")
    if model.dtype == torch.float16:
        raise UserError("gradients vanish in float16 by rounding alone: choose --dtype bfloat16 or float32")
    parts, special = model_parts(model, connector), special_ids(tokenizer_of(processor), model.config)
    text_norm = mean_embedding_norm(parts.embedding)
    model.requires_grad_(True)
    values: dict[str, dict[str, list[float]]] = {variant: defaultdict(list) for variant in VARIANTS}
    for image in track(sample, description="gradients"):
        inputs = inputs_of(processor, image, model.device, model.dtype)
        for variant in VARIANTS:
            with told(f"{model.config._name_or_path} fails on {image.id}"):
                found = gradients_of(model, parts, variant, inputs, text_norm, special)
            for name, value in found.items():
                values[variant][name].append(value)
    model.zero_grad()
    result: dict[str, dict[str, Any]] = {}
    for variant, columns in values.items():
        result[variant] = {}
        for name, column in columns.items():
            numbers = torch.tensor(column, dtype=torch.float64)
            result[variant][name] = {"mean": numbers.mean().item(), "ci95": mean_interval(numbers)}
            if name in values["none"]:
                ratios = (numbers / torch.tensor(values["none"][name], dtype=torch.float64)).log()
                result[variant][name]["over_none"] = ratios.mean().exp().item()
                result[variant][name]["over_none_ci95"] = mean_interval(ratios, torch.exp)
    return result
