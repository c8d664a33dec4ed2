"""An answer or a score that a model gives without finite logits is none: it is an error, not a token or a number."""

from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.forward_pass import not_finite


def no_answer(config: Any, dtype: torch.dtype | str, question: str) -> UserError:
    """The error of a model without finite logits; the message has the end of `question`, what it was asked."""
    return not_finite(config, dtype, "its logits", f", so it has no answer to {question[-60:]!r}")


class FiniteLogits(LogitsProcessor):
    """Ends `generate` where the logits of a row are not finite.

    Args:
        questions: of the rows, in order, for the message.
    """

    def __init__(self, model: Any, questions: list[str]) -> None:
        self.model, self.questions = model, questions

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return the logits `scores`, (rows, V), as they are.

        Raises:
            UserError: a row has a NaN, or no largest logit.
        """
        wrong = ~torch.isfinite(scores.amax(-1))  # -inf alone is how a token is ruled out
        if wrong.any():
            question = self.questions[int(wrong.nonzero()[0])]
            raise no_answer(self.model.config, self.model.dtype, question)
        return scores
