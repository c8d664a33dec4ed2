"""Pads or packs tokenized rows and decodes their images; the rest was done once by `train.tokenization`."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import BaseImageProcessor

from modeling_aligned_llava.images import open_image
from train.feature_cache import FeatureCache
from train.tokenization import IGNORED


@dataclass
class ImageTextCollator:
    """Rows -> `input_ids`, `labels` [rows, longest] and `pixel_values` [images, 3, height, width].

    Padded rows have an `attention_mask`; packed ones have `position_ids` instead, which start anew with each row. A
    batch without any image has no `pixel_values`. With a feature cache the pixels are those of images it lacks, and
    `image_keys`, `image_features` tell which are which.

    Args:
        packed: put the rows one behind the other into one sequence [1, sum of lengths]. Without an attention mask the
            decoder derives from the positions that no row attends to another.
    """

    image_processor: BaseImageProcessor
    pad_token_id: int
    packed: bool = False
    feature_cache: FeatureCache | None = None

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """Collate rows of the tokenized dataset; padding goes to the right."""
        batch: dict[str, Any] = _pack(rows) if self.packed else self._pad(rows)
        images = [path for row in rows for path in row["images"]]
        if self.feature_cache is not None and images:
            batch["image_keys"] = keys = [self.feature_cache.key(path) for path in images]
            loaded = {i: self.feature_cache.load(key) for i, key in enumerate(keys)}
            batch["image_features"] = {i: features for i, features in loaded.items() if features is not None}
            images = [path for i, path in enumerate(images) if i not in batch["image_features"]]
        if images:
            opened = [open_image(path) for path in images]
            batch["pixel_values"] = self.image_processor(images=opened, return_tensors="pt")["pixel_values"]
        return batch

    def _pad(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        input_ids = torch.full((len(rows), longest), self.pad_token_id)
        labels = torch.full((len(rows), longest), IGNORED)
        attention_mask = torch.zeros((len(rows), longest), dtype=torch.long)
        for i, row in enumerate(rows):
            length = len(row["input_ids"])
            input_ids[i, :length] = torch.tensor(row["input_ids"])
            labels[i, :length] = torch.tensor(row["labels"])
            attention_mask[i, :length] = 1
        return {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}


def _pack(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
    # the first token of a row is not to be predicted from the last one of the row before
    labels = [token for row in rows for token in (IGNORED, *row["labels"][1:])]
    return {
        "input_ids": torch.tensor([[token for row in rows for token in row["input_ids"]]]),
        "labels": torch.tensor([labels]),
        "position_ids": torch.cat([torch.arange(len(row["input_ids"])) for row in rows])[None],
    }
