"""`gradients`: does the gradient vanish (paper section 5.1)? One pass without a norm, one with it, one with GWC.

The norm is put on the connector's output, where `align` puts it, so that any checkpoint can be measured and all
variants share its weights. A Pre-Norm decoder divides its input by the norm: dL/dy grows as 1 / |y| and cancels the
small gain.
"""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor
from torch.nn import functional as F

from modeling_aligned_llava.diagnostics.instruments.decoder_states import watch_decoder_input
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion, named_images
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load, tokenizer_of
from modeling_aligned_llava.diagnostics.instruments.tables import show_table
from modeling_aligned_llava.diagnostics.instruments.token_masks import Masks
from modeling_aligned_llava.diagnostics.instruments.token_statistics import mean_interval
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.forward_pass import check_finite, hooked, sees_targets
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm, target_gain


VARIANTS = ("none", "norm", "norm-gwc")
GROUPS = ("connector", "vision", "language", "norm")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code, arguments.dtype)
    variants = gradients(model, processor, named_images(arguments), arguments.connector)
    show_gradients(arguments.model, variants, arguments.out and arguments.out / "gradients.md")
    if arguments.out is not None:
        write_json(arguments.out / "gradients.json", variants)


def gradients(
    model: Any, processor: Any, sample: list[ImageQuestion], connector: str | None = None
) -> dict[str, dict[str, Any]]:
    """`{variant: {number: {"mean", "ci95", "over_none", "over_none_ci95"}}}` over images; weights are unchanged.

    Raises:
        UserError: the weights are quantized or in float16, or as for `gradients_of`.
    """
    if getattr(model.config, "quantization_config", None) is not None:
        raise UserError(f"{model.config.name_or_path} is quantized: gradients of its parts need whole weights")
    if model.dtype == torch.float16:
        raise UserError("gradients vanish in float16 by rounding alone: choose --dtype bfloat16 or float32")
    parts, special = model_parts(model, connector), special_ids(tokenizer_of(processor), model.config)
    text_norm = mean_embedding_norm(parts.embedding)
    model.requires_grad_(True)
    values: dict[str, dict[str, list[float]]] = {variant: defaultdict(list) for variant in VARIANTS}
    for image in track(sample, description="gradients"):
        inputs = inputs_of(processor, image, model.device, model.dtype)
        for variant in VARIANTS:
            with errors_named(f"{model.config.name_or_path} fails on {image.id}"):
                numbers = gradients_of(model, parts, variant, inputs, text_norm, special)
            for name, value in numbers.items():
                values[variant][name].append(value)
    model.zero_grad()
    return {
        variant: {name: _compared(column, values["none"].get(name)) for name, column in columns.items()}
        for variant, columns in values.items()
    }


def _compared(column: list[float], without: list[float] | None) -> dict[str, Any]:
    """A number of each image: its mean, and its ratio to that `without` a norm."""
    values = torch.tensor(column, dtype=torch.float64)
    cell: dict[str, Any] = {"mean": values.mean().item(), "ci95": mean_interval(values)}
    if without is not None:
        ratios = (values / torch.tensor(without, dtype=torch.float64)).log()
        cell |= {"over_none": ratios.mean().exp().item(), "over_none_ci95": mean_interval(ratios, torch.exp)}
    return cell


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
            return type(output)(normalised(connector, part) for part in output)
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
    handles = [part.register_forward_hook(lambda module, _, out: normalised(module, out)) for part in parts.connectors]
    with hooked(handles), watch_decoder_input(model, parts, at_decoder_input, special):
        output = model(**inputs, use_cache=False)
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
    numbers = {"loss": loss.item(), "|y|": _mean_norm(states[visual]), "|dL/dy|": _mean_norm(gradient[visual])}
    numbers["|dL/dx|"] = _mean_norm(torch.cat([x.grad.flatten(0, -2) for x in outputs if x.grad is not None]))
    of_norms = [parameter for norm in norms.values() for parameter in norm.parameters()]
    groups: dict[str, list[Any]] = {"norm": of_norms, **_groups(model, parts)}
    for name in GROUPS:
        squares = [p.grad.double().square().sum().item() for p in groups[name] if p.grad is not None]
        if squares:
            numbers[name] = sum(squares) ** 0.5
    check_finite(torch.tensor(list(numbers.values())), model, "loss and gradients")
    return numbers


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


def show_gradients(model: str, variants: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Section 5.1: one column per variant, with its ratio to the variant without a norm."""
    names = dict.fromkeys(name for numbers in variants.values() for name in numbers)
    rows = [[name, *(_cell(numbers.get(name)) for numbers in variants.values())] for name in names]
    title = f"{model}: gradients of one batch (geometric mean of the ratio to no norm, 95 %)"
    show_table(title, ["", *variants], rows, out)


def _cell(value: dict[str, Any] | None) -> str:
    if value is None:
        return "-"
    text = f"{value['mean']:.4g}"
    if "over_none" not in value:
        return text
    low, high = value["over_none_ci95"]
    return f"{text} (x {value['over_none']:.3g} [{low:.3g}, {high:.3g}])"
