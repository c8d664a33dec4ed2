"""How far each group of parameters has moved: one that should train and has not is an error at the end of a run."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from accelerate.utils import reduce
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

from train.optimization.parameter_groups import ParameterGroup


SAMPLE = 65_536  # values of a tensor, evenly spaced, from which the distance is estimated


class Mark(NamedTuple):
    """What is kept of a tensor: the sum of its bits, which any change alters, and some of its values."""

    bits: int
    sample: Tensor


class Movement(TrainerCallback):
    """Marks the trained parameters of a trainer's model when a run starts or goes on, and compares them at its end."""

    def __init__(self, trainer: Any, groups: list[ParameterGroup]) -> None:
        self.trainer = trainer
        self.groups = [group for group in groups if group.learning_rate and group.names]
        self.has_rate = False  # in some step so far; in a warm-up the first has none
        self.before: dict[str, Mark] = {}

    def on_train_begin(self, args, state, control, **kwargs):
        self.before = {name: _mark(shard) for name, shard in self._shards()}

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.has_rate |= any(group["lr"] for group in optimizer.param_groups)

    def compare(self) -> tuple[list[str], str | None]:
        """A line for each group, and the pattern of one that has not moved; called by every process."""
        lines, unmoved = [], None
        shards = dict(self._shards())
        for group in self.groups if self.has_rate else ():
            marks = [(self.before[name], _mark(shards[name])) for name in group.names]
            changed = torch.tensor([float(old.bits != new.bits) for old, new in marks])
            squares = [[(new.sample - old.sample).square().sum(), old.sample.square().sum()] for old, new in marks]
            device = next(iter(shards.values())).device
            changed, (far, long) = _summed(changed, device) > 0, _summed(torch.tensor(squares).sum(0), device)
            still = [name for name, moved in zip(group.names, changed.tolist(), strict=True) if not moved]
            ratio = (far / long).sqrt().item() if long else float("inf")
            text = f"{group.pattern}: moved by {ratio:.2g} of its length"
            lines.append(
                text + (f"; {len(still)} of {len(marks)} tensors did not, such as {still[0]}" if still else "")
            )
            if len(still) == len(marks):
                unmoved = group.pattern
        return lines, unmoved

    def _shards(self) -> Iterator[tuple[str, Tensor]]:
        """Name and value of each trained parameter, as far as this process holds it."""
        # Of the trainer, not of the callback's arguments: FSDP2 shards another copy of the model.
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # a forward pass leaves those of the root whole
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                shard = getattr(parameter, "ds_tensor", parameter.detach())  # ZeRO-3's
                yield name, shard.to_local() if isinstance(shard, DTensor) else shard


def _mark(shard: Tensor) -> Mark:
    values = shard.contiguous().flatten()
    sample = values[:: max(1, len(values) // SAMPLE)].float().cpu().clone()
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[values.element_size()]
    return Mark(int(values.view(kind).sum(dtype=torch.int64)), sample)


def _summed(values: Tensor, device: torch.device) -> Tensor:
    """The sum over processes."""
    return reduce(values.to(device), "sum").cpu()
