"""Where the time of training steps goes: seconds by group of operators, from torch's profiler."""

from collections import defaultdict
from typing import Any

from torch.profiler import ProfilerActivity, profile
from transformers import TrainerCallback


# The first group that has a part of the operator's name counts; what remains is `other`.
GROUPS = {
    "matrix products": ("mm", "linear", "conv"),
    "attention": ("attention",),
    "optimizer": ("optimizer", "adam", "lerp", "addcdiv", "addcmul", "_foreach"),
    "loss": ("log_softmax", "nll_loss", "cross_entropy"),
    "copies": ("copy", "clone", "cat", "contiguous", "index", "gather", "scatter", "embedding", "fill", "zero"),
    "sums and norms": ("sum", "mean", "norm"),
    "elementwise": ("mul", "add", "div", "sub", "silu", "gelu", "sqrt", "pow", "neg", "where", "exp", "sigmoid"),
}
LARGEST = 12


class StepProfile(TrainerCallback):
    """Profiles the last epoch; `result` holds the seconds on the device by group and of the largest operators."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs
        self.started: profile | None = None
        self.result: dict[str, Any] = {}

    def on_epoch_begin(self, args, state, control, **kwargs):
        if round(state.epoch or 0) == self.epochs - 1:
            self.started = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])
            self.started.start()

    def on_epoch_end(self, args, state, control, **kwargs):
        if self.started is None:
            return
        self.started.stop()
        seconds: dict[str, float] = defaultdict(float)
        for event in self.started.key_averages():
            spent = event.self_device_time_total or event.self_cpu_time_total
            seconds[event.key] += spent / 1e6
        groups: dict[str, float] = defaultdict(float)
        for name, spent in seconds.items():
            groups[group_of(name)] += spent
        largest = sorted(seconds.items(), key=lambda each: -each[1])[:LARGEST]
        self.result = {"groups": dict(groups), "operators": dict(largest)}
        self.started = None


def group_of(operator: str) -> str:
    """The group of an operator, such as `aten::addmm`."""
    name = operator.lower()
    return next((group for group, parts in GROUPS.items() if any(part in name for part in parts)), "other")
