"""Pad tokenized rows and preprocess their images; `train.data.prepared` has done the rest, once."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import BaseImageProcessor

from train.data.tokenization import IGNORE_INDEX


Rows = list[dict[str, Any]]
OpenImages = Callable[[Rows], tuple[Rows, list[Image]]]


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
        batch = self._pad(rows)
        if images:
            batch["pixel_values"] = self.image_processor(images=images, return_tensors="pt")["pixel_values"]
        return batch

    def _pad(self, rows: Rows) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        input_ids = torch.full((len(rows), longest), self.pad_token_id)
        labels = torch.full((len(rows), longest), IGNORE_INDEX)
        attention_mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for i, row in enumerate(rows):
            length = len(row["input_ids"])
            input_ids[i, :length] = torch.tensor(row["input_ids"])
            labels[i, :length] = torch.tensor(row["labels"])
            attention_mask[i, :length] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
