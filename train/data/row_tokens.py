"""How a row becomes tokens: one interface, with an implementation for models of ours and one for other families."""

import re
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal, Protocol

from datasets import Features
from PIL.Image import Image
from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.inspection.text_stream import special_ids
from train.data.row import BadRow


Rows = list[dict[str, Any]]
OpenImages = Callable[[Rows], tuple[Rows, list[Image]]]
IGNORE_INDEX = -100


Kind = Literal["given", "image", "supervised"]


class RowTokens(Protocol):
    """How a row of messages and images is stored, and what the collator then reads."""

    columns: ClassVar[Features]  # of a stored row, besides its images
    reads_sizes: ClassVar[bool]  # the sizes of the images decide what is stored

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any] | BadRow]:
        """For each row `{"messages", "images"}`, with `sizes` if it reads them, what is stored, or what is wrong."""

    def expanded(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """Columns of stored rows as the collator reads them."""

    def settings(self) -> tuple[Any, ...]:
        """Everything that the stored rows depend on besides the code."""

    def pieces(self, row: dict[str, Any]) -> Iterator[tuple[Kind, str]]:
        """The text of a row in order, and of which kind each piece is."""

    def supervised(self, batch: dict[str, Any]) -> list[int]:
        """The number of supervised tokens of stored rows."""

    def ending(self) -> tuple[str, str] | None:
        """The token that ends an answer and where it comes from, if that is known."""


def each_row(encode: Callable[[Any], dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any] | BadRow]:
    """What `encode` makes of each row, or the `BadRow` that it raises."""
    made: list[dict[str, Any] | BadRow] = []
    for row in rows:
        try:
            made.append(encode(row))
        except BadRow as fault:
            made.append(fault)
    return made


def control_tokens(tokenizer: PreTrainedTokenizerBase, *allowed: str) -> re.Pattern:
    """What the text of a row must not hold: it would open a turn or an image."""
    special = tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer)))
    return re.compile("|".join(re.escape(token) for token in special if token not in allowed) or "(?!)")


def too_long(length: int, limit: int) -> BadRow:
    """A sound row of more tokens than `max_length`."""
    return BadRow(f"longer than max_length {limit}", f"{length} tokens", filtered=True)
