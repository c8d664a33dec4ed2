"""Rows as tokens for a model of ours, and its collator.

The template's {% generation %} markers mark the supervised tokens; `<image>` becomes one id per visual token.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Features, List, Value
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import BaseImageProcessor, PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from train.data.chat_text import ChatText
from train.data.row import BadRow, text_of
from train.data.row_tokens import IGNORE_INDEX, Kind, OpenImages, Rows, RowTokens, control_tokens


@dataclass(frozen=True)
class LlavaTokens(RowTokens):
    """How rows become tokens for a model of ours, whose images all have the same number of tokens.

    Args:
        tokenizer: a fast tokenizer that has `<image>` as one token.
        template: chat template with generation markers.
        image_token_id: id of `<image>`.
        image_tokens: number of visual tokens per image.
        max_length: see `RowTokens`.
    """

    tokenizer: PreTrainedTokenizerBase
    template: str
    image_token_id: int
    image_tokens: int
    max_length: int | None

    columns: ClassVar[Features] = Features(
        {"input_ids": List(Value("int32")), "assistant_masks": List(Value("int8")), "length": Value("int32")}
    )

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        """Of a row `{"messages", "images"}` its `input_ids` (one id per image), `assistant_masks` and `length`.

        `assistant_masks` is 1 for supervised tokens. `length` counts all visual tokens.
        """
        if not self._chat.marked:
            raise UserError("the chat template marks no supervised tokens: it needs {% generation %}")
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
        self.check_length(length)
        return {"input_ids": ids, "assistant_masks": mask.tolist(), "length": length}

    @cached_property
    def _chat(self) -> ChatText:
        return ChatText(self.tokenizer, self.template)

    @cached_property
    def _control(self) -> re.Pattern:
        return control_tokens(self.tokenizer, IMAGE_TOKEN)

    def ending(self) -> tuple[str, str] | None:
        """See `RowTokens`."""
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


def expand(
    ids: list[int], assistant_mask: list[int], image_token_id: int, image_tokens: int
) -> tuple[list[int], list[int]]:
    """Repeat the id of each image once per visual token.

    Returns:
        `input_ids` and `labels`, the latter `IGNORE_INDEX` where the token is not supervised.
    """
    tokens = np.array(ids)
    image = tokens == image_token_id
    labels = np.where(np.array(assistant_mask, dtype=bool) & ~image, tokens, IGNORE_INDEX)
    times = np.where(image, image_tokens, 1)
    return tokens.repeat(times).tolist(), labels.repeat(times).tolist()


@dataclass
class ImageTextCollator:
    """Rows -> `input_ids`, `attention_mask`, `labels` [rows, longest] and `pixel_values` [images, 3, height, width].

    The padding is on the right. A batch without images has no `pixel_values`.

    Args:
        open_images: a `RowImages`; it may replace rows.
    """

    image_processor: BaseImageProcessor
    pad_token_id: int
    open_images: OpenImages

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        """Collate rows of the training data."""
        rows, images = self.open_images(rows)
        values = {"input_ids": self.pad_token_id, "labels": IGNORE_INDEX, "attention_mask": 0}  # of padding
        rows = [{**row, "attention_mask": [1] * len(row["input_ids"])} for row in rows]
        batch = {
            name: pad_sequence([torch.tensor(row[name]) for row in rows], batch_first=True, padding_value=value)
            for name, value in values.items()
        }
        if images:
            batch["pixel_values"] = self.image_processor(images=images, return_tensors="pt")["pixel_values"]
        return batch
