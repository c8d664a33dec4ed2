"""What a module gets or gives in a forward pass, without the rest of the pass."""

from collections.abc import Callable
from typing import Any, NoReturn

from torch import nn


class _Reached(Exception):
    """Carries a value out of a forward pass."""


def input_of(module: nn.Module, run: Callable[[], object]) -> tuple[tuple, dict[str, Any]] | None:
    """The (args, kwargs) that `module` is first called with in `run()`, which ends there; None if it is not called."""

    def leave(_: Any, args: tuple, kwargs: dict[str, Any]) -> NoReturn:
        raise _Reached((args, kwargs))

    return _until(module.register_forward_pre_hook(leave, with_kwargs=True), run)


def output_of(module: nn.Module, run: Callable[[], object]) -> Any:
    """What `module` first returns in `run()`, which ends there; None if it is not called."""

    def leave(_: Any, args: tuple, output: Any) -> NoReturn:
        raise _Reached(output)

    return _until(module.register_forward_hook(leave), run)


def _until(handle: Any, run: Callable[[], object]) -> Any:
    try:
        run()
    except _Reached as reached:
        return reached.args[0]
    finally:
        handle.remove()
    return None
