"""What is made of numbers that are not finite means nothing: it is an error that names model, precision and place."""

from typing import Any

import torch
from torch import Tensor

from modeling_aligned_llava.errors import UserError


def not_finite(config: Any, dtype: torch.dtype | str, what: str, so: str = "") -> UserError:
    """The error of a model (`config`) that overflows in a precision: `what` is not finite, `so` is its consequence."""
    dtype = str(dtype).removeprefix("torch.")
    other = {"float16": "bfloat16 or float32", "bfloat16": "float32"}.get(dtype)
    advice = f"choose --dtype {other}" if other else "its weights are damaged"
    return UserError(f"{config._name_or_path or config.model_type}: {what} are not finite in {dtype}{so}: {advice}")


def check_finite(values: Tensor, model: Any, what: str) -> None:
    """Check numbers of a model.

    Raises:
        UserError: one of them is not finite.
    """
    if not bool(values.isfinite().all()):
        raise not_finite(model.config, model.dtype, what)
