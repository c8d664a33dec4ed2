"""Settings: the size of a step, learning rates, clipping."""

import math
import re
from dataclasses import dataclass, field
from typing import Any, ClassVar

from modeling_aligned_llava.errors import UserError
from train.arguments.json_object import json_object


@dataclass
class OptimizationArguments:
    """The size of a step and the learning rate of each parameter."""

    _argument_group_name: ClassVar[str] = "optimization"

    global_batch_size: int = field(
        metadata={
            "help": "Number of rows per optimizer step over all processes. The number of gradient accumulation steps "
            "follows from it."
        }
    )
    # without None the parser would take it for a plain dict, which cannot be given on the command line
    learning_rates: dict | str | None = field(
        metadata={
            "help": "Learning rate of each parameter group, as `{pattern: learning rate}`. A pattern is a regex over "
            "parameter names, or one of norm, projector, vision, language, lora. On the command line, a JSON object. "
            "Each trained parameter must match exactly one pattern."
        }
    )
    frozen: list[str] = field(
        default_factory=list,
        metadata={"help": "Patterns, as in `learning_rates`, of the parameters that are not trained."},
    )
    clip_by_part: bool = field(
        default=False,
        metadata={
            "help": "Whether to clip the gradient of each part of the model (norm, projector, vision, language) to "
            "`max_grad_norm` on its own, instead of the whole gradient. Not with DeepSpeed."
        },
    )
    norm_storage: str = field(
        default="float32",
        metadata={
            "help": "Precision to which gain and bias of the norm are rounded after every step, `float32` or "
            "`bfloat16`: what training in bfloat16 weights would do to them."
        },
    )
    max_skipped_steps: int = field(
        default=0,
        metadata={
            "help": "Number of steps whose loss or gradient may be NaN or infinite before the run stops; their rows "
            "are not trained on, and `skipped_steps.jsonl` lists them. 0 stops at the first one. Not with DeepSpeed."
        },
    )
    rates: dict[str, float] = field(init=False)  # `learning_rates` as numbers

    def __post_init__(self) -> None:
        rates = json_object(self.learning_rates, "learning_rates")
        if not rates:
            raise UserError("learning_rates must be {regex: rate}, and not empty")
        if self.norm_storage not in ("float32", "bfloat16"):
            raise UserError(f"norm_storage must be float32 or bfloat16, not {self.norm_storage!r}")
        if self.max_skipped_steps < 0:
            raise UserError(f"max_skipped_steps must not be negative, not {self.max_skipped_steps}")
        self.rates = {str(pattern): _rate(pattern, rate) for pattern, rate in rates.items()}
        for pattern in (*self.rates, *self.frozen):
            try:
                re.compile(pattern)
            except re.error as error:
                raise UserError(
                    f"learning_rates, frozen: {pattern!r} is not a regular expression ({error})"
                ) from error


def _rate(pattern: str, rate: Any) -> float:
    try:
        number = float(rate)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise UserError(f"learning_rates: the rate of {pattern!r} must be a number from 0, not {rate!r}")
    return number
