"""Does a connector normalise what it gives the decoder (paper section 5), or what it reads, or nothing?

Found by measuring: a module normalises if an input four times as large gives an output of the same size.
"""

from typing import Any

import torch
from torch import Tensor, nn

from modeling_aligned_llava.diagnostics.instruments.decoder_states import states_of
from modeling_aligned_llava.inspection.forward_pass import hooked
from modeling_aligned_llava.inspection.model_parts import ModelParts


FACTOR = 4.0  # that inputs are multiplied by
SAME = 0.02  # how far the output of a normalising module may still change, relative; eps and rounding allow for it


@torch.no_grad()
def connector_norm(model: Any, parts: ModelParts, inputs: dict[str, Any]) -> dict[str, Any]:
    """Where the connector normalises, in a forward pass of `model` with these inputs.

    Returns:
        `place`: "after" (the output of a norm is the connector's), "before" (a projection follows the norm), or None;
        `module`: path of the last norm in the connector, or None; `scaled`: how many times as large the connector's
        output is if its input is `FACTOR` times as large (1: it does not depend on the scale). `failure`, and nothing
        else, if a part of the connector cannot be called again.
    """
    try:
        return _connector_norm(model, parts, inputs)
    except Exception as error:  # of a module with code of its own: all other measurements stand
        return {"failure": f"{type(error).__name__}: {' '.join(str(error).split())}"}


def connector_line(measured: dict[str, Any]) -> str:
    """What `connector_norm` found, in words."""
    if "failure" in measured:
        return f"Connector: could not be tested for a norm ({measured['failure']})."
    if measured["place"] == "after":
        return f"Connector: ends in a norm ({measured['module']}), which sets the norm of visual tokens."
    if measured["place"] == "before":
        return f"Connector: a norm ({measured['module']}), then a projection, which sets the norm of visual tokens."
    inherited = "visual tokens inherit the scale of the encoder's features"
    independent = "its output does not depend on the scale of its input all the same"
    return f"Connector: no norm; {independent if abs(measured['scaled'] - 1) < SAME else inherited}."


def _connector_norm(model: Any, parts: ModelParts, inputs: dict[str, Any]) -> dict[str, Any]:
    connector = parts.connectors[0]
    leaves = {name: module for name, module in connector.named_modules() if not any(module.children())}
    calls: list[tuple[str, nn.Module, tuple, dict[str, Any], Any]] = []

    def watch(name: str, module: nn.Module) -> Any:
        return module.register_forward_hook(
            lambda _, args, kwargs, output: calls.append((name, module, args, kwargs, output)), with_kwargs=True
        )

    with hooked([watch(name, module) for name, module in {**leaves, "": connector}.items()]):
        model(**inputs, use_cache=False)
    first = [name for name, *_ in calls].index("")  # the connector's call; a later one is of another image
    norms = [
        (name, output)
        for name, module, args, kwargs, output in calls[:first]
        if abs(_scaled(module, args, kwargs, output) - 1) < SAME
    ]
    _, module, args, kwargs, output = calls[first]
    place = None
    if norms:
        place = "after" if torch.isclose(_size(norms[-1][1]), _size(output)) else "before"
    return {
        "place": place,
        "module": norms[-1][0] if norms else None,
        "scaled": _scaled(module, args, kwargs, output),
    }


def _scaled(module: nn.Module, args: tuple, kwargs: dict[str, Any], output: Any) -> float:
    """How many times as large the output is if the first states among the arguments are `FACTOR` times as large."""
    given = [*args, *kwargs.values()]
    read = next((number for number, value in enumerate(given) if states_of(value) is not None), None)
    if read is None or states_of(output) is None:
        return torch.nan
    value = given[read]
    given[read] = value * FACTOR if isinstance(value, Tensor) else [part * FACTOR for part in value]
    again = module(*given[: len(args)], **dict(zip(kwargs, given[len(args) :], strict=True)))
    return (_size(again) / _size(output)).item()


def _size(output: Any) -> Tensor:
    """The L2 norm of all states of an output, whatever their shape."""
    states = states_of(output)
    assert states is not None
    return states.double().norm()
