"""Stop strings: where they cut an answer, and whether the tokens of an answer have reached one."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria


def cut(answer: str, stops: Sequence[str]) -> str:
    """End an answer at the first stop string after its leading whitespace.

    A model that begins with an empty line has not finished: `until: ["\\n\\n"]` would leave nothing of its answer.
    """
    begin = len(answer) - len(answer.lstrip())
    return answer[: min((end for stop in stops if stop and (end := answer.find(stop, begin)) >= 0), default=None)]


class GrowingAnswer:
    """The tokens of one answer. Only its last tokens are decoded at every step.

    Args:
        tokenizer: decodes the tokens; special ones are left out.
        stops: the answer ends at any of them.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self.tokens: list[int] = []
        self._tokenizer, self._stops = tokenizer, [stop for stop in stops if stop]
        self._window = max((len(stop.encode()) for stop in self._stops), default=0) + 4  # a token is a byte or more
        self._first: int | None = None  # the first token with text

    def append(self, token: int) -> bool:
        """Add a token; return whether a stop string has been reached."""
        self.tokens.append(token)
        if not self._stops:
            return False
        if self._first is None:
            if not self._decode(0).strip():
                return False
            self._first = len(self.tokens) - 1
        start = len(self.tokens) - self._window
        text = self._decode(start) if start > self._first else self._decode(self._first).lstrip()
        return any(stop in text for stop in self._stops)

    def _decode(self, start: int) -> str:
        return self._tokenizer.decode(self.tokens[start:], skip_special_tokens=True)


class StopStrings(StoppingCriteria):
    """Ends each row of `generate` at its first stop string.

    Args:
        prompt: tokens of the padded prompts, which are not looked at.
    """

    def __init__(self, tokenizer: Any, stops: Sequence[str], rows: int, prompt: int) -> None:
        self._answers = [GrowingAnswer(tokenizer, stops) for _ in range(rows)]
        self._prompt = prompt

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        new = input_ids[:, self._prompt :].tolist()
        found = [answer.append(row[-1]) for answer, row in zip(self._answers, new, strict=True)]
        return torch.tensor(found, device=input_ids.device)
