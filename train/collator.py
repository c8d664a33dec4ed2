"""Pads tokenized rows and decodes their images; everything else was done once by `train.tokenization`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import BaseImageProcessor

from modeling_aligned_llava.images import open_image
from train.tokenization import IGNORED


@dataclass
class ImageTextCollator:
    """Rows -> `input_ids`, `attention_mask`, `labels` [rows, longest] and `pixel_values` [images, 3, height, width].

    A batch without any image has no `pixel_values`.
    """

    image_processor: BaseImageProcessor
    pad_token_id: int

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """Collate rows of the tokenized dataset; padding goes to the right."""
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
        images = [open_image(path) for row in rows for path in row["images"]]
        if images:
            batch["pixel_values"] = self.image_processor(images=images, return_tensors="pt")["pixel_values"]
        return batch
