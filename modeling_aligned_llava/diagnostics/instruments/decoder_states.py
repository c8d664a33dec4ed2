"""Hooks on the decoder input: what enters the first layer, with the masks of its tokens, to read or to replace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.diagnostics.instruments.token_masks import Masks, find_tokens
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.forward_pass import check_finite, hooked, in_rows, watch_layers
from modeling_aligned_llava.inspection.model_parts import ModelParts


CROSS_ATTENTION = ("cross_attention_states", "encoder_hidden_states", "image_hidden_states")
PLACES, AT_PLACE = "image_embeds_position_mask", -1  # Kosmos-2 marks visual tokens in a mask and has no id for them
OnDecoderInput = Callable[[Tensor, Masks], Tensor | None]


@contextmanager
def watch_decoder_input(
    model: Any, parts: ModelParts, on_input: OnDecoderInput, special_ids: frozenset[int] = frozenset()
) -> Iterator[None]:
    """Call `on_input(states [rows, tokens, D], masks)` in every pass; states that it returns replace the input.

    Raises:
        UserError: in a pass whose images do not enter as tokens, whose tokens are several states at once, or whose
            states are not finite.
    """
    given: dict[str, Any] = {}
    connector_rows: list[Tensor] = []
    marks: dict[Any, Tensor] = {}  # connector -> its trained rows

    def before_model(_: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        ids, places = kwargs["input_ids"] if "input_ids" in kwargs else args[0], kwargs.get(PLACES)
        given["input_ids"] = ids if places is None else ids.masked_fill(places == 1, AT_PLACE)
        given["image_token_id"] = parts.image_token_id if places is None else AT_PLACE
        given["attention_mask"] = kwargs.get("attention_mask")
        connector_rows.clear()

    def after_connector(module: Any, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        states = states_of(output)
        if states is not None:
            connector_rows.append(states.detach())
            if module not in marks:
                marks[module] = _trained_rows(module, args, kwargs, states)

    def before_first_layer(_: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        if any(kwargs.get(name) is not None for name in CROSS_ATTENTION):
            raise UserError("images enter this model by cross-attention: there are no visual tokens among the text")
        states = args[0] if args else kwargs["hidden_states"]
        if states.dim() > 3:
            raise UserError("this decoder's layers read several streams at once: a token has no one norm in them")
        masks = find_tokens(
            in_rows(states),
            given["input_ids"],
            given["attention_mask"],
            connector_rows,
            given["image_token_id"],
            special_ids,
            list(marks.values()),
        )
        connector_rows.clear()
        given["real"] = torch.stack(list(masks.values())).any(0)
        check_finite(in_rows(states)[given["real"]], model, "the states that enter the decoder")
        changed = on_input(in_rows(states), masks)
        if changed is None:
            return None
        changed = changed.view_as(states)
        return ((changed, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": changed})

    def after_layer(index: int, _: Tensor, after: Tensor) -> None:
        check_finite(after[given["real"]], model, f"the states after decoder layer {index}")

    handles = [
        model.register_forward_pre_hook(before_model, with_kwargs=True),
        *(part.register_forward_hook(after_connector, with_kwargs=True) for part in parts.connectors),
        parts.layers[0].register_forward_pre_hook(before_first_layer, with_kwargs=True),
    ]
    with hooked(handles), watch_layers(parts.layers, after_layer):
        yield


@torch.no_grad()
def _trained_rows(connector: Any, args: tuple, kwargs: dict[str, Any], states: Tensor) -> Tensor:
    """The rows [n, D] of `states` that another input would not change: trained marks, such as the end of a line.

    None if no row would change: then the connector does not read its input, as one that starts at zero.
    """
    before = states_of(connector.forward(*args, **kwargs))
    after = states_of(connector.forward(*_flipped(args), **_flipped(kwargs)))
    rows = states.detach().flatten(0, -2)
    if before is None or after is None or before.shape != states.shape or after.shape != states.shape:
        return rows[:0]
    same = (before == after).all(-1).flatten()
    return rows[:0] if same.all() else rows[same]


def _flipped(value: Any) -> Any:
    """Other features of the same shapes."""
    if isinstance(value, Tensor):
        return value.flip(-1) if value.is_floating_point() and value.dim() else value
    if isinstance(value, dict):
        return {name: _flipped(entry) for name, entry in value.items()}
    return type(value)(map(_flipped, value)) if type(value) in (list, tuple) else value


def states_of(output: Any) -> Tensor | None:
    """The hidden states [..., D] among a module's inputs or outputs: a tensor, a list of tensors or an output object.

    Tensors of shape [tokens, D] in a list are joined: they are the images of a batch.
    """
    if isinstance(output, Tensor):
        return output if output.is_floating_point() else None
    if isinstance(output, list | tuple):
        if len(output) > 1 and all(isinstance(part, Tensor) and part.dim() == 2 for part in output):
            if len({part.shape[-1] for part in output}) == 1 and output[0].is_floating_point():
                return torch.cat(list(output))
        return next((states for part in output if (states := states_of(part)) is not None), None)
    return states_of(getattr(output, "last_hidden_state", None)) if output is not None else None


def without_padding(states: Tensor, arguments: dict[str, Any]) -> Tensor:
    """The states [..., D] that a module made of real patches, if its arguments have a mask of them."""
    masks = [value for name, value in arguments.items() if name.endswith("attention_mask") and value is not None]
    return next((states[mask.bool()] for mask in masks if mask.shape == states.shape[:-1]), states)
