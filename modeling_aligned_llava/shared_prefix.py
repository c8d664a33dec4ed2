"""Rows that begin alike are prefilled once: many questions about one image, few-shot blocks, endings of one context.

`plan` decides which rows share what; `SharedPrefix` computes keys and values of the shared parts and lays the rows out
behind them. Both sides are padded on the left, so the last column is every row's last token:

    [pad | prefix | pad | rest]     prefix: in the cache already, rest: still to be read by the network
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer


LONG = 512  # a prefix of so many tokens keeps the machine busy alone, and alone it needs no padding


@dataclass(frozen=True)
class Segment:
    """Rows (indices) that share their first `shared` tokens."""

    rows: tuple[int, ...]
    shared: int


def can_share(model: Any) -> bool:
    """Whether a prefix is remembered as plain keys and values in every layer: no window, no recurrent state."""
    layers = DynamicCache(config=model.config.get_text_config()).layers
    return not model._is_stateful and all(type(layer) is DynamicLayer for layer in layers)


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the common prefix."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def plan(
    rows: Sequence[Sequence[int]], groups: Sequence[Any], ranges: Sequence[tuple[int, int]], most: int
) -> list[Segment]:
    """Cut the rows, in sorted order, into segments so that as few tokens as possible are computed twice.

    Args:
        rows: token ids of each row.
        groups: rows share only within a group, e.g. the digest of their images.
        ranges: (least, most) tokens from its beginning that a row can share: all its images must be among them, its
            last token must not.
        most: rows a segment at most.
    """
    order = sorted(range(len(rows)), key=lambda index: (str(groups[index]), rows[index]))
    alike = [
        common_length(rows[first], rows[second]) if groups[first] == groups[second] else 0
        for first, second in itertools.pairwise(order)
    ]
    saved = [0] * (len(order) + 1)  # of the first i rows in order, in tokens
    cut = [(0, 0)] * (len(order) + 1)  # where the last segment of the first i rows begins, and what it shares
    for end in range(1, len(order) + 1):
        last = order[end - 1]
        best, cut[end] = saved[end - 1], (end - 1, 0)
        least, shared = ranges[last]
        for start in range(end - 2, max(-1, end - 1 - most), -1):
            row = order[start]
            least = max(least, ranges[row][0])
            shared = min(shared, ranges[row][1], alike[start])
            if shared < max(least, 1):
                break
            gain = saved[start] + (end - 1 - start) * shared
            if gain > best:
                best, cut[end] = gain, (start, shared)
        saved[end] = best
    segments = []
    end = len(order)
    while end:
        start, shared = cut[end]
        segments.append(Segment(tuple(order[start:end]), shared))
        end = start
    return segments[::-1]


def pack(segments: list[Segment], lengths: Sequence[int], most: int, tokens: int | None = None) -> list[list[Segment]]:
    """Batches of at most `most` rows: segments that share together, those that share nothing together, like with like.

    If `tokens` is given, a batch remembers at most so many (but always a segment's).
    """
    batches: list[list[Segment]] = []
    for sharing in (True, False):
        chosen = [segment for segment in segments if (segment.shared > 0) == sharing]
        chosen.sort(key=lambda segment: (-segment.shared, -max(lengths[row] for row in segment.rows), segment.rows))
        room = 0
        for segment in chosen:
            if len(segment.rows) > room:
                batches.append([])
                room = most
                if tokens is not None:
                    fitting = tokens // max(lengths[row] for row in segment.rows)
                    room = min(most, max(len(segment.rows), fitting))
            batches[-1].append(segment)
            room -= len(segment.rows)
    return batches


def pad_left(rows: Sequence[Sequence[int]], pad: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Token ids and attention mask, both (rows, longest)."""
    width = max(len(row) for row in rows)
    ids = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], device=device)
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows], device=device)
    return ids, mask


class RoomyLayer(DynamicLayer):
    """Keys and values of all rows, with room for what follows: a `DynamicLayer` copies all it holds for every token.

    Args:
        prefixes: filled layers; entry j of the i-th holds a prefix, its padding on the left.
        owners: for each row (i, j), the prefix that it stands behind.
        room: tokens that will be added.
    """

    def __init__(self, prefixes: list[DynamicLayer], owners: list[tuple[int, int]], room: int) -> None:
        super().__init__()
        filled = [(cast(Tensor, layer.keys), cast(Tensor, layer.values)) for layer in prefixes]
        self.lazy_initialization(*filled[0])
        length = max(keys.shape[-2] for keys, _ in filled)
        self._whole: list[Tensor] = []
        for kind in (0, 1):
            _, heads, _, width = filled[0][kind].shape
            whole = filled[0][kind].new_zeros(len(owners), heads, length + room, width)
            for i, states in enumerate(filled):
                own = states[kind]
                places = [(row, j) for row, (owner, j) in enumerate(owners) if owner == i]
                rows, entries = map(list, zip(*places, strict=True))
                whole[rows, :, length - own.shape[-2] : length] = own[entries]
            self._whole.append(whole)
        self._show(length)

    def _show(self, length: int) -> tuple[Tensor, Tensor]:
        self.keys, self.values = shown = self._whole[0][:, :, :length], self._whole[1][:, :, :length]
        return shown

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.get_seq_length()
        end = start + key_states.shape[-2]
        self._whole[0][:, :, start:end] = key_states
        self._whole[1][:, :, start:end] = value_states
        return self._show(end)


def positions(mask: Tensor) -> Tensor:
    """Position ids that count tokens, not padding: (rows, columns) -> (rows, columns)."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


@dataclass
class SharedPrefix:
    """Rows behind their prefixes, ready for the network.

    Attributes:
        ids: (rows, prefix + rest), the prefix's columns are in the cache.
        mask: (rows, prefix + rest), 0 for padding.
        cache: keys and values of the prefix, one entry a row; None if the rows share nothing.
    """

    ids: Tensor
    mask: Tensor
    cache: DynamicCache | None

    @property
    def cached(self) -> int:
        return 0 if self.cache is None else self.cache.get_seq_length()

    @classmethod
    def build(
        cls,
        model: Any,
        rows: Sequence[Sequence[int]],
        batch: list[Segment],
        pad: int,
        answer: int = 0,
        pixel_values: list[Tensor] | None = None,
    ) -> "SharedPrefix":
        """Prefill what the segments of `batch` share; rows come in the order of the segments.

        Args:
            model: a causal or vision-language model of transformers with a plain key-value cache.
            rows: token ids of all rows, of which `batch` names some; an image token a patch.
            answer: tokens that will be generated.
            pixel_values: for each segment [images, 3, height, width], maybe of no image.
        """
        rests = [rows[row][segment.shared :] for segment in batch for row in segment.rows]
        ids, mask = pad_left(rests, pad, model.device)
        if batch[0].shared == 0:
            return cls(ids, mask, None)
        prefixes = [rows[segment.rows[0]][: segment.shared] for segment in batch]
        alone = pixel_values is not None or min(map(len, prefixes)) >= LONG
        parts = [[i] for i in range(len(batch))] if alone else [list(range(len(batch)))]
        caches = []
        for part in parts:
            part_ids, part_mask = pad_left([prefixes[i] for i in part], pad, model.device)
            vision = {}
            if pixel_values is not None and len(pixel_values[part[0]]):
                vision = {"pixel_values": pixel_values[part[0]]}
            caches.append(DynamicCache(config=model.config.get_text_config()))
            model.base_model(
                input_ids=part_ids,
                attention_mask=part_mask,
                position_ids=positions(part_mask),
                past_key_values=caches[-1],
                use_cache=True,
                **vision,
            )
        places = [(i, 0) if alone else (0, i) for i in range(len(batch))]
        owners = [places[i] for i, segment in enumerate(batch) for _ in segment.rows]
        layers = zip(*(cache.layers for cache in caches), strict=True)
        cache = DynamicCache()
        cache.layers = [RoomyLayer(list(layer), owners, ids.shape[1] + answer) for layer in layers]  # type: ignore[arg-type]
        prefix_ids, prefix_mask = pad_left(
            [prefixes[i] for i, segment in enumerate(batch) for _ in segment.rows], pad, model.device
        )
        return cls(torch.cat([prefix_ids, ids], 1), torch.cat([prefix_mask, mask], 1), cache)
