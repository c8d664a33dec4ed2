"""Conversations -> token ids and labels, once before training: the collator then has only to pad.

Labels come from the template's {% generation %} markers; `<image>` becomes one id per visual token.
"""

from typing import Any, cast

from datasets import Dataset
from transformers import BatchEncoding, PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError


IGNORED = -100
_BATCH = 500


def tokenize_conversations(
    rows: list[dict[str, Any]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    template: str,
    image_token_id: int,
    image_tokens: int,
    max_length: int | None,
    source: str,
) -> tuple[Dataset, int]:
    """Tokenize rows of `read_conversations`.

    Args:
        template: chat template with generation markers.
        image_tokens: visual tokens of one image.
        max_length: rows with more tokens are left out, never cut; None keeps all.
        source: name of the data, for messages.

    Returns:
        The dataset, with columns `input_ids`, `labels`, `images` (paths) and `length`, and the number of rows left
        out for their length.

    Raises:
        UserError: a row has nothing to learn from, or every row is too long.
    """
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": [], "images": [], "length": []}
    left_out = 0
    for start in range(0, len(rows), _BATCH):
        batch = rows[start : start + _BATCH]
        encoded = cast(
            BatchEncoding,
            tokenizer.apply_chat_template(
                [row["messages"] for row in batch],
                chat_template=template,
                return_dict=True,
                return_assistant_tokens_mask=True,
            ),
        )
        for offset, row in enumerate(batch):
            ids, mask = encoded["input_ids"][offset], encoded["assistant_masks"][offset]
            where = f"{source}, row {start + offset}"
            if not any(mask):
                raise UserError(f"{where}: there is no answer to learn from")
            if ids.count(image_token_id) != len(row["images"]):
                raise UserError(f"{where}: {len(row['images'])} images but {ids.count(image_token_id)} in the text")
            input_ids, labels = _expand(ids, mask, image_token_id, image_tokens)
            if max_length is not None and len(input_ids) > max_length:
                left_out += 1
                continue
            columns["input_ids"].append(input_ids)
            columns["labels"].append(labels)
            columns["images"].append(row["images"])
            columns["length"].append(len(input_ids))
    if not columns["length"]:
        raise UserError(f"{source}: every row is longer than max_length {max_length}")
    return Dataset.from_dict(columns), left_out


def _expand(ids: list[int], mask: list[int], image_token_id: int, image_tokens: int) -> tuple[list[int], list[int]]:
    """Repeat the image's id for each of its visual tokens; labels are the ids the template marked."""
    input_ids: list[int] = []
    labels: list[int] = []
    for token, learned in zip(ids, mask, strict=True):
        count = image_tokens if token == image_token_id else 1
        input_ids.extend([token] * count)
        labels.extend([token if learned else IGNORED] * count)
    return input_ids, labels
