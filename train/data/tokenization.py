"""Tokenize messages and mark the supervised tokens, once before training; the collator only pads.

The template's {% generation %} markers mark the supervised tokens; `<image>` becomes one id per visual token.
"""

import re
import threading
from dataclasses import dataclass
from typing import Any, cast

from transformers import BatchEncoding, PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN
from train.data.conversations import BadRow


IGNORE_INDEX = -100
_TEMPLATE = threading.Lock()  # the compiled template is shared, and keeps the markers of the row it is rendering


@dataclass(frozen=True)
class Tokenization:
    """How rows become tokens.

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

    def __call__(self, rows: list[dict[str, Any]]) -> list[dict[str, Any] | BadRow]:
        """For each row `{"messages", "images"}`: `input_ids` (one id per image), `assistant_masks` and `length`.

        `assistant_masks` is 1 for supervised tokens. `length` counts all visual tokens.

        Raises:
            UserError: the template marks no supervised tokens, or drops images.
        """
        with _TEMPLATE:
            encoded = cast(
                BatchEncoding,
                self.tokenizer.apply_chat_template(
                    [row["messages"] for row in rows],
                    chat_template=self.template,
                    return_dict=True,
                    return_assistant_tokens_mask=True,
                ),
            )
        control = self._control_tokens()
        return [
            self._checked(row, ids, mask, control)
            for row, ids, mask in zip(rows, encoded["input_ids"], encoded["assistant_masks"], strict=True)
        ]

    def _checked(
        self, row: dict[str, Any], ids: list[int], mask: list[int], control: re.Pattern
    ) -> dict[str, Any] | BadRow:
        if not any(mask):
            raise UserError("the chat template marks no supervised tokens: it needs {% generation %}")
        if ids.count(self.image_token_id) != len(row["images"]):
            raise UserError(
                f"the chat template writes {ids.count(self.image_token_id)} images for a row of {len(row['images'])}"
            )
        for message in row["messages"]:
            for part in message["content"]:
                if found := control.search(part.get("text", "")):
                    return BadRow("the text holds a control token", found.group())
        length = len(ids) + len(row["images"]) * (self.image_tokens - 1)
        if self.max_length is not None and length > self.max_length:
            return BadRow(f"longer than max_length {self.max_length}", f"{length} tokens", filtered=True)
        return {"input_ids": ids, "assistant_masks": mask, "length": length}

    def _control_tokens(self) -> re.Pattern:
        special = [token.content for token in self.tokenizer.added_tokens_decoder.values() if token.special]
        return re.compile("|".join(re.escape(token) for token in special if token != IMAGE_TOKEN) or "(?!)")


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
