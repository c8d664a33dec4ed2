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


class Stops:
    """The strings that end the answers of a batch.

    Args:
        tokenizer: decodes answers; special tokens are left out.
        strings: an answer ends at any of them.
    """

    def __init__(self, tokenizer: Any, strings: Sequence[str]) -> None:
        self._tokenizer = tokenizer
        self.strings = [string for string in strings if string]
        # In tokens: one is a byte or more, and the first may be a part of a character.
        self.window = max((len(string.encode()) for string in self.strings), default=0) + 4

    def text(self, tokens: Sequence[int]) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=True)


class GrowingAnswer:
    """The tokens of one answer, of which only the last are decoded to find a stop string."""

    def __init__(self, stops: Stops) -> None:
        self.tokens: list[int] = []
        self._stops = stops
        self._first: int | None = None  # the first token with text

    def append(self, token: int) -> bool:
        """Add a token; return whether a stop string has been reached."""
        self.tokens.append(token)
        stops = self._stops
        if not stops.strings:
            return False
        if self._first is None:
            if not stops.text(self.tokens).strip():
                return False
            self._first = len(self.tokens) - 1
        start = len(self.tokens) - stops.window
        tail = stops.text(self.tokens[max(start, self._first) :])
        text = tail if start > self._first else tail.lstrip()
        return any(string in text for string in stops.strings)


class StopStrings(StoppingCriteria):
    """Ends each row of `generate` at its first stop string."""

    def __init__(self, stops: Stops, rows: int) -> None:
        self._answers = [GrowingAnswer(stops) for _ in range(rows)]

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        new = input_ids[:, -1].tolist()
        ended = [answer.append(token) for answer, token in zip(self._answers, new, strict=True)]
        return torch.tensor(ended, device=input_ids.device)
