"""Tokenize messages and mark the supervised tokens, once before training; the collator only pads.

The template's {% generation %} markers mark the supervised tokens; `<image>` becomes one id per visual token. Other
families than ours: `train.data.family_rows`.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from datasets import Features, List, Value
from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from train.data.chat_text import ChatText
from train.data.conversations import BadRow, text_of


IGNORE_INDEX = -100


Kind = Literal["given", "image", "supervised"]


class RowEncoder(Protocol):
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


@dataclass(frozen=True)
class Tokenization:
    """How rows become tokens for a model of ours, whose images all have the same number of tokens.

    Args:
        tokenizer: a fast tokenizer that has `<image>` as one token.
        template: chat template with generation markers.
        image_token_id: id of `<image>`.
        image_tokens: number of visual tokens per image.
        max_length: rows with more tokens are filtered out, never truncated; None keeps all.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str
    image_token_id: int
    image_tokens: int
    max_length: int | None

    columns: ClassVar[Features] = Features(
        {"input_ids": List(Value("int32")), "assistant_masks": List(Value("int8")), "length": Value("int32")}
    )
    reads_sizes: ClassVar[bool] = False

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any] | BadRow]:
        """For each row `{"messages", "images"}`: `input_ids` (one id per image), `assistant_masks` and `length`.

        `assistant_masks` is 1 for supervised tokens. `length` counts all visual tokens.

        Raises:
            UserError: the template marks no supervised tokens, or drops images.
        """
        if not self._chat.marked:
            raise UserError("the chat template marks no supervised tokens: it needs {% generation %}")
        return each_row(self._row, rows)

    def _row(self, row: dict[str, Any]) -> dict[str, Any]:
        text, answers = self._chat(row["messages"])
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, places = encoded["input_ids"], np.array(encoded["offset_mapping"]).T
        mask = sum((places[0] < end) & (places[1] > start) for start, end in answers)
        if ids.count(self.image_token_id) != len(row["images"]):
            raise UserError(
                f"the chat template writes {ids.count(self.image_token_id)} images for a row of {len(row['images'])}"
            )
        if control := self._control.search(text_of(row["messages"])):
            raise BadRow("the text holds a control token", control.group())
        length = len(ids) + len(row["images"]) * (self.image_tokens - 1)
        if self.max_length is not None and length > self.max_length:
            raise too_long(length, self.max_length)
        return {"input_ids": ids, "assistant_masks": mask.tolist(), "length": length}

    @cached_property
    def _chat(self) -> ChatText:
        return ChatText(self.tokenizer, self.template)

    @cached_property
    def _control(self) -> re.Pattern:
        return control_tokens(self.tokenizer, IMAGE_TOKEN)

    def ending(self) -> tuple[str, str] | None:
        """See `RowEncoder`."""
        return self._chat.ending()

    def expanded(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        """`assistant_masks` becomes `labels`, and the id of each image one per visual token."""
        if "assistant_masks" not in batch:
            return batch  # only some columns are requested
        masks = batch.pop("assistant_masks")
        pairs = [
            expand(ids, mask, self.image_token_id, self.image_tokens)
            for ids, mask in zip(batch["input_ids"], masks, strict=True)
        ]
        return {**batch, "input_ids": [ids for ids, _ in pairs], "labels": [labels for _, labels in pairs]}

    def settings(self) -> tuple[Any, ...]:
        """Everything that the stored rows depend on besides the code."""
        backend = self.tokenizer.backend_tokenizer.to_str()  # type: ignore[attr-defined]
        special = sorted(self.tokenizer.special_tokens_map.items())
        return backend, self.template, special, self.image_token_id, self.image_tokens, self.max_length

    def pieces(self, row: dict[str, Any]) -> Iterator[tuple[Kind, str]]:
        """The text of a row in order, and of which kind each piece is."""
        for kind, tokens in groupby(zip(row["input_ids"], row["labels"], strict=True), key=self._kind):
            ids = [token for token, _ in tokens]
            image = kind == "image"
            text = f"<image x {len(ids)}>" if image else self.tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            yield kind, str(text)

    def _kind(self, token: tuple[int, int]) -> Kind:
        return "image" if token[0] == self.image_token_id else "given" if token[1] == IGNORE_INDEX else "supervised"

    def supervised(self, batch: dict[str, Any]) -> list[int]:
        """The number of supervised tokens of stored rows."""
        return [int(sum(mask)) for mask in batch["assistant_masks"]]


def control_tokens(tokenizer: PreTrainedTokenizerBase, *allowed: str) -> re.Pattern:
    """What the text of a row must not hold: it would open a turn or an image."""
    special = tokenizer.convert_ids_to_tokens(sorted(special_ids(tokenizer)))
    return re.compile("|".join(re.escape(token) for token in special if token not in allowed) or "(?!)")


def too_long(length: int, limit: int) -> BadRow:
    """A sound row of more tokens than `max_length`."""
    return BadRow(f"longer than max_length {limit}", f"{length} tokens", filtered=True)


def expand(
    ids: list[int], assistant_mask: list[int], image_token_id: int, image_tokens: int
) -> tuple[list[int], list[int]]:
    """Repeat the id of each image once per visual token.

    Returns:
        `input_ids` and `labels`, the latter `IGNORE_INDEX` where the token is not supervised.
    """
    labels = [token if supervised else IGNORE_INDEX for token, supervised in zip(ids, assistant_mask, strict=True)]
    input_ids = list(ids)
    positions = [position for position, token in enumerate(ids) if token == image_token_id]
    for position in reversed(positions):
        input_ids[position : position + 1] = [image_token_id] * image_tokens
        labels[position : position + 1] = [IGNORE_INDEX] * image_tokens
    return input_ids, labels
