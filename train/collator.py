"""Pads tokenized rows and decodes their images; everything else was done once by `train.tokenization`."""

from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor
from transformers import BaseImageProcessor

from modeling_aligned_llava.errors import UserError
from train.tokenization import IGNORED


MAX_PIXELS = 100_000_000  # a file of a few kB can claim to be gigapixels


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


def open_image(path: str) -> Image.Image:
    """Decode an image file to RGB.

    Raises:
        UserError: the file is no image, is damaged, or is larger than `MAX_PIXELS`.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"{path} has {image.width} x {image.height} pixels, more than {MAX_PIXELS}")
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image: {error}") from error
