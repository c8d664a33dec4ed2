"""Looks into a forward pass of any model: what a module or a layer gets and gives, and whether it means anything.

Numbers that are not finite mean nothing: they are an error that names model, precision and place.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modeling_aligned_llava.errors import UserError


class _Reached(Exception):
    """Carries a value out of a forward pass."""


def input_of(module: nn.Module, run: Callable[[], object]) -> tuple[tuple, dict[str, Any]] | None:
    """The (args, kwargs) that `module` is first called with in `run()`, which ends there; None if it is not called."""

    def leave(_: Any, args: tuple, kwargs: dict[str, Any]) -> NoReturn:
        raise _Reached(args, kwargs)

    with module.register_forward_pre_hook(leave, with_kwargs=True):
        try:
            run()
        except _Reached as reached:
            args, kwargs = reached.args
            return args, kwargs
    return None


@contextmanager
def hooked(handles: Iterable[RemovableHandle]) -> Iterator[None]:
    """Keep hooks, which were just registered, until the `with` block ends."""
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def watch_layers(layers: nn.ModuleList, look: Callable[[int, Tensor, Tensor], None]) -> AbstractContextManager[None]:
    """Inside the `with` block, call `look(layer, before, after)` with [rows, tokens, D] around every decoder layer."""

    def hook(layer: int, args: tuple, kwargs: dict[str, Any], output: Any) -> None:
        before = args[0] if args else kwargs["hidden_states"]
        look(layer, in_rows(before), in_rows(output[0] if isinstance(output, tuple) else output))

    return hooked(
        [
            module.register_forward_hook(
                lambda _, args, kwargs, output, layer=layer: hook(layer, args, kwargs, output), with_kwargs=True
            )
            for layer, module in enumerate(layers)
        ]
    )


def in_rows(states: Tensor) -> Tensor:
    """States as [rows, tokens, D], even of a decoder that drops the dimension of rows."""
    return states if states.dim() > 2 else states[None]


@torch.no_grad()
def sees_targets(model: Any, inputs: Mapping[str, Tensor], count: int) -> bool:
    """Whether the prediction of the first of the last `count` tokens changes where these are read backwards: whether
    the decoder sees a token before it predicts it, as one that reads its prompt in both directions does.

    Args:
        inputs: those of `model`, among them `input_ids`, (rows, tokens).
    """
    ids = inputs["input_ids"]
    backwards = torch.cat([ids[:, :-count], ids[:, -count:].flip(1)], 1)
    first, second = (
        model(**{**inputs, "input_ids": read}, use_cache=False).logits[:, -count - 1].float()
        for read in (ids, backwards)
    )
    return bool((first - second).abs().max() > 0.1 * first.abs().max())  # far more than rounding


def check_finite(values: Tensor, model: Any, name: str) -> None:
    """Check numbers of a model, which the error calls `name`.

    Raises:
        UserError: one of them is not finite.
    """
    if not bool(values.isfinite().all()):
        raise not_finite(model.config, model.dtype, name)


def not_finite(config: Any, dtype: torch.dtype | str, name: str, consequence: str = "") -> UserError:
    """The error of a model (`config`) that overflows in a precision: the numbers `name` are not finite."""
    dtype = str(dtype).removeprefix("torch.")
    other = {"float16": "bfloat16 or float32", "bfloat16": "float32"}.get(dtype)
    advice = f"choose --dtype {other}" if other else "its weights are damaged"
    return UserError(
        f"{config.name_or_path or config.model_type}: {name} are not finite in {dtype}{consequence}: {advice}"
    )
