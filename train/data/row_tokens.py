"""How a row becomes tokens: one interface, with an implementation for models of ours and one for other families."""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

from datasets import Features
from PIL.Image import Image
from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.inspection.content_text import special_ids
from train.data.row import BadRow


Rows = list[dict[str, Any]]
OpenImages = Callable[[Rows], tuple[Rows, list[Image]]]
IGNORE_INDEX = -100


Kind = Literal["given", "image", "supervised"]


class RowTokens(ABC):
    """How a row of messages and images is stored, and what the collator then reads.

    Attributes:
        max_length: rows with more tokens are filtered out, never truncated; None keeps all.
        columns: of a stored row, besides its images.
        reads_sizes: whether the sizes of the images decide what is stored.
    """

    max_length: int | None
    columns: ClassVar[Features]
    reads_sizes: ClassVar[bool] = False

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any] | BadRow]:
        """For each row `{"messages", "images"}`, with `sizes` if it reads them, what is stored, or what is wrong.

        Raises:
            UserError: the template drops images, or the answers cannot be found in what it writes.
        """
        made: list[dict[str, Any] | BadRow] = []
        for row in rows:
            try:
                made.append(self.stored(row))
            except BadRow as fault:
                made.append(fault)
        return made

    @abstractmethod
    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        """What is stored of a row; errors as of the call, and `BadRow`."""

    def check_length(self, length: int) -> None:
        """Raise `BadRow` for a sound row of more tokens than `max_length`."""
        if self.max_length is not None and length > self.max_length:
            raise BadRow(f"longer than max_length {self.max_length}", f"{length} tokens", filtered=True)

    def expanded(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Columns of stored rows as the collator reads them."""
        return batch

    @abstractmethod
    def settings(self) -> tuple[Any, ...]:
        """Everything that the stored rows depend on besides the code."""

    @abstractmethod
    def pieces(self, row: dict[str, Any]) -> Iterator[tuple[Kind, str]]:
        """The text of a row in order, and of which kind each piece is."""

    @abstractmethod
    def supervised(self, batch: dict[str, Any]) -> list[int]:
        """The number of supervised tokens of stored rows."""

    @abstractmethod
    def ending(self) -> tuple[str, str] | None:
        """The token that ends an answer and where it comes from, if that is known."""


def control_tokens(tokenizer: PreTrainedTokenizerBase, *allowed: str) -> re.Pattern:
    """What the text of a row must not hold: it would open a turn or an image."""
    special = tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer)))
    return re.compile("|".join(re.escape(token) for token in special if token not in allowed) or "(?!)")
