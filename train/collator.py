"""Pads tokenized rows and preprocesses their images; everything else was done once by `train.training_data`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL.Image import Image
from torch import Tensor
from transformers import BaseImageProcessor

from train.tokenization import IGNORED


Rows = list[dict[str, Any]]
OpenImages = Callable[[Rows], tuple[Rows, list[Image]]]


@dataclass
class ImageTextCollator:
    """Rows -> `input_ids`, `attention_mask`, `labels` [rows, longest] and `pixel_values` [images, 3, height, width].

    A batch without any image has no `pixel_values`. `open_images` is a `RowImages`.
    """

    image_processor: BaseImageProcessor
    pad_token_id: int
    open_images: OpenImages

    def __call__(self, rows: Rows) -> dict[str, Tensor]:
        """Collate rows of the training data; padding goes to the right."""
        rows, images = self.open_images(rows)
        longest = max(len(row["input_ids"]) for row in rows)
        input_ids = torch.full((len(rows), longest), self.pad_token_id)
        labels = torch.full((len(rows), longest), IGNORED)
        attention_mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for i, row in enumerate(rows):
            length = len(row["input_ids"])
            input_ids[i, :length] = torch.tensor(row["input_ids"])
            labels[i, :length] = torch.tensor(row["labels"])
            attention_mask[i, :length] = 1
        batch = {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if images:
            batch["pixel_values"] = self.image_processor(images=images, return_tensors="pt")["pixel_values"]
        return batch
