"""The learning rate of each parameter: `{regex or part: learning rate}` and a list of frozen ones.

A part is one of `PARTS`, such as `projector`, whatever the family calls it. Every parameter is either frozen or
matches exactly one rate, so that none is missed and none is trained twice.
"""

import re
from dataclasses import dataclass

import torch
from torch import nn

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.parameter_parts import PARTS, Parts


@dataclass
class ParameterGroup:
    """Parameters trained at one learning rate, or frozen if it is None."""

    pattern: str
    learning_rate: float | None
    names: list[str]
    size: int

    def __str__(self) -> str:
        rate = "frozen" if self.learning_rate is None else f"lr {self.learning_rate:g}"
        return f"{self.pattern}: {rate}, {len(self.names)} tensors, {self.size:,} parameters"


def group_parameters(model: nn.Module, rates: dict[str, float], frozen: list[str]) -> list[ParameterGroup]:
    """Group the parameters of `model` by the first frozen regex, or the only rate, that matches them; parts count
    where no regex matches.

    Raises:
        UserError: a parameter that is not frozen matches no rate, or several, or a rate matches frozen ones alone.
    """
    parts = Parts.of(model) if {*rates, *frozen} & {*PARTS} else None
    groups = [ParameterGroup(pattern, None, [], 0) for pattern in frozen]
    groups += [ParameterGroup(pattern, rate, [], 0) for pattern, rate in rates.items()]
    matched: set[str] = set()
    for name, parameter in model.named_parameters():
        part = parts and parts(name)
        matching = [g for g in groups if not (part and g.pattern in PARTS) and re.search(g.pattern, name)]
        matching = matching or [group for group in groups if part and group.pattern == part]
        matched.update(group.pattern for group in matching)
        if not any(group.learning_rate is None for group in matching) and len(matching) != 1:
            patterns = " and ".join(group.pattern for group in matching) or "none"
            raise UserError(f"parameter {name} must match one of learning_rates or frozen; it matches {patterns}")
        matching[0].names.append(name)
        matching[0].size += parameter.numel()
    if hidden := [group.pattern for group in groups if group.pattern in matched & {*rates} and not group.names]:
        raise UserError(f"learning_rates: all that {hidden[0]} matches is frozen: narrow frozen")
    return groups


def freeze(model: nn.Module, groups: list[ParameterGroup], dtype: torch.dtype = torch.float32) -> None:
    """Require gradients for the trained groups only, and store the matrices of the others in `dtype`.

    Vectors stay float32: they take no memory, and a layer norm refuses parameters less precise than its input.
    """
    trained = {name for group in groups if group.learning_rate is not None for name in group.names}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
        if name not in trained and parameter.dim() > 1:
            parameter.data = parameter.data.to(dtype)
