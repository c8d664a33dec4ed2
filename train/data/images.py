"""The rows of a stage with their images.

A row whose image fails is quarantined and replaced by another one of its side: one that is held out from training by
another that is.

The replacement depends only on seed, epoch and row, so it is the same after a restart, in any worker and on any rank.
That of a row held out is the same in all epochs, so that the losses are those of the same rows.
"""

import hashlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from datasets import Dataset
from PIL.Image import Image
from torch import Tensor
from transformers import TrainerCallback

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image
from train.data.prepared import BAD_IMAGE, TrainingData, embedded_bytes, first_rows, read_column
from train.data.quarantine import Entry, Quarantine
from train.data.row import EmbeddedImage
from train.data.sources import Source


_ATTEMPTS = 100


@dataclass
class RowImages:
    """Open the images of rows of `data.dataset` and `data.evaluation`.

    Args:
        data: the rows, and the tables that hold embedded images.
        quarantine: records failures.
        seed: chooses the replacement, together with epoch and row.
        epoch: set by the trainer; in shared memory, so that workers see it.
    """

    data: TrainingData
    quarantine: Quarantine
    seed: int
    epoch: Tensor = field(default_factory=lambda: torch.zeros((), dtype=torch.int64).share_memory_())

    def __call__(self, rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Image]]:
        """The rows, some of them replaced, and their images in order.

        Raises:
            UserError: more rows have failed than the limit allows.
        """
        opened = [self._usable(row) for row in rows]
        return [row for row, _ in opened], [image for _, images in opened for image in images]

    def _usable(self, row: dict[str, Any]) -> tuple[dict[str, Any], list[Image]]:
        original = row
        held = (row["source"], row["row"]) in self._held_out
        others = self.data.evaluation if held else self.data.dataset
        assert others is not None
        for attempt in range(_ATTEMPTS):
            try:
                return row, open_row(self.data, row)
            except UserError as error:
                file = self.data.sources[row["source"]].path
                self.quarantine.add(Entry(file, row["row"], None, BAD_IMAGE, str(error), when="training"))
            key = f"{self.seed} {0 if held else int(self.epoch)} {original['source']} {original['row']} {attempt}"
            digest = hashlib.blake2b(key.encode(), digest_size=8).digest()
            row = others[int.from_bytes(digest, "big") % len(others)]
        file = self.data.sources[original["source"]].path
        raise UserError(f"{file}, row {original['row']}: its image and those of {_ATTEMPTS} replacements fail")

    @cached_property
    def _held_out(self) -> set[tuple[int, int]]:
        if self.data.evaluation is None:
            return set()
        return set(zip(*(read_column(self.data.evaluation, name).tolist() for name in ("source", "row")), strict=True))


def first_images(sources: list[Source], cache: str | None = None) -> Iterator[Image]:
    """The images of the usable rows in order; not of rows with a damaged one."""
    for source, raw, row in first_rows(sources, cache):
        with suppress(UserError):
            yield from _open(source, raw, row)


def open_row(data: TrainingData, row: dict[str, Any]) -> list[Image]:
    """The images of a row of `data.dataset`.

    Raises:
        UserError: one of them is missing or damaged.
    """
    return _open(data.sources[row["source"]], data.raw[row["source"]], row)


def _open(source: Source, raw: Dataset, row: dict[str, Any]) -> list[Image]:
    label = f"{source.path}, row {row['row']}: image"
    return [
        open_image(embedded_bytes(raw.data, name), label)
        if name.startswith(EmbeddedImage.PREFIX) and not source.is_text
        else open_image(name)
        for name in row["images"]
    ]


class SetEpoch(TrainerCallback):
    """Tell the epoch to `RowImages`, and to micro-batches: a resumed trainer of several processes does not."""

    def __init__(self, row_images: RowImages, micro_batches: Any = None):
        self.row_images = row_images
        self.micro_batches = micro_batches

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.row_images.epoch.fill_(int(state.epoch))
        if self.micro_batches is not None:
            self.micro_batches.set_epoch(int(state.epoch))
