"""Rows that begin alike, read as one sequence: what they share once, then each row's rest, blind to the other rests.

A token attends to the earlier tokens of its own row and of the part its segment shares, which is what a causal decoder
sees of the row alone. Nothing is padded, and shared keys and values are neither computed nor kept for every row:

    shared part of segment 0 | rest of row 0 | rest of row 1 | shared part of segment 1 | ... | answers, token by token
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from modeling_aligned_llava.inference.prefix_plan import Segment


CAPACITY = 16_384  # tokens remembered at a time, unless one segment has more
PASS = 1_024  # tokens a forward pass: enough to keep a machine busy, and attention is quadratic in it
SHARED = -1  # in place of a row: the token belongs to all rows of its segment


def can_read_trees(model: Any) -> bool:
    """Whether the decoder keeps plain keys and values in every layer (no window, no recurrent state) and takes a mask
    of its caller's making."""
    config = model.config.get_text_config()
    plain = all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
    own_mask = model._supports_attention_backend and config._attn_implementation in ("sdpa", "eager")
    return own_mask and plain and not model._is_stateful


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of one row of a segment (or `SHARED`); `place` is the position of the first."""

    segment: int
    row: int
    tokens: Sequence[int]
    place: int


class BufferLayer(DynamicLayer):
    """Keys and values of one layer in a buffer that is kept from batch to batch: fresh memory is slow to get.

    `start` and `end` say which of its columns the next forward pass sees.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start = self.end = self.capacity = 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        if self.keys is None or self.values is None or self.keys.shape[-2] < self.capacity:
            if self.end:
                raise ValueError("a buffer in use cannot grow")
            self.keys = key_states.new_empty(*key_states.shape[:-2], self.capacity, key_states.shape[-1])
            self.values = value_states.new_empty(*value_states.shape[:-2], self.capacity, value_states.shape[-1])
            self.is_initialized = True
        first, self.end = self.end, self.end + key_states.shape[-2]
        self.keys[:, :, first : self.end] = key_states
        self.values[:, :, first : self.end] = value_states
        return self.keys[:, :, self.start : self.end], self.values[:, :, self.start : self.end]

    def get_seq_length(self) -> int:
        return self.end - self.start


class TokenTree:
    """The rows of one batch in a network's memory; `read` begins the next batch.

    Args:
        model: a causal or vision-language model of transformers for which `can_read_trees` holds.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        layers = len(DynamicCache(config=model.config.get_text_config()).layers)
        self.layers = [BufferLayer() for _ in range(layers)]
        self.cache = DynamicCache()
        self.cache.layers = list(self.layers)
        self.length = 0  # columns in use
        self.segment_of = self.row_of = torch.empty(0)  # of each column
        self.segment: dict[int, int] = {}  # row -> its segment
        self.places: dict[int, int] = {}  # row -> position of its next token

    def read(
        self,
        rows: Sequence[Sequence[int]],
        batch: Sequence[Segment],
        wanted: Mapping[int, int],
        answer: int = 0,
        pixel_values: Sequence[Tensor | None] = (),
    ) -> list[Tensor]:
        """Logits of the last tokens of each row, in the order of the segments: each (wanted, vocabulary).

        Args:
            rows: token ids of all rows, of which `batch` names some; an image token a patch.
            wanted: row of the batch -> how many logits; all of them belong to its own rest.
            answer: tokens that will be added to each row.
            pixel_values: of each segment [images, 3, height, width], or None; a segment that shares nothing has one
                row. Empty for text.
        """
        pieces = list(_pieces(rows, batch))
        members = [row for segment in batch for row in segment.rows]
        needed = sum(len(piece.tokens) for piece in pieces) + len(members) * answer
        capacity = max(CAPACITY, needed)
        for layer in self.layers:
            layer.start, layer.end, layer.capacity = 0, 0, capacity
        self.length = 0
        self.segment_of, self.row_of = torch.full((2, capacity), SHARED, device=self.model.device)
        self.segment = {row: index for index, segment in enumerate(batch) for row in segment.rows}
        self.places = {row: len(rows[row]) for row in members}
        starts: dict[int, int] = {}  # segment -> its first column
        logits: dict[int, Tensor] = {}
        for group in _passes(pieces):
            column = self.length
            keep: list[int] = []
            for piece in group:
                starts.setdefault(piece.segment, column)
                column += len(piece.tokens)
                if piece.row != SHARED:
                    keep += range(column - wanted[piece.row] - self.length, column - self.length)
            opened = [index for index in dict.fromkeys(p.segment for p in group) if starts[index] >= self.length]
            vision = [pixel_values[index] for index in opened] if pixel_values else []
            found = self._forward(group, starts[group[0].segment], keep, [each for each in vision if each is not None])
            for piece in group:
                if piece.row != SHARED:
                    logits[piece.row], found = found[: wanted[piece.row]], found[wanted[piece.row] :]
        return [logits[row] for row in members]

    def append(self, rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Read one more token of some rows: logits (rows, vocabulary)."""
        pieces = [Piece(self.segment[row], row, [t], self.places[row]) for row, t in zip(rows, tokens, strict=True)]
        for row in rows:
            self.places[row] += 1
        return self._forward(pieces, 0, list(range(len(pieces))), [])

    def _forward(self, pieces: Sequence[Piece], start: int, keep: list[int], vision: list[Tensor]) -> Tensor:
        """One pass over new columns that sees those from `start` on: logits (kept, vocabulary)."""
        device = self.model.device
        ids = torch.tensor([[token for piece in pieces for token in piece.tokens]], device=device)  # (1, new)
        places = [piece.place + i for piece in pieces for i in range(len(piece.tokens))]
        end = self.length + ids.shape[1]
        new = slice(self.length, end)
        counts = torch.tensor([len(piece.tokens) for piece in pieces], device=device)
        for owner, values in ((self.segment_of, [p.segment for p in pieces]), (self.row_of, [p.row for p in pieces])):
            owner[new] = torch.tensor(values, device=device).repeat_interleave(counts)
        for layer in self.layers:
            layer.start = start
        alone = start == self.length and _one_row(pieces)
        logits = self.model(
            input_ids=ids,
            attention_mask=None if alone else self._mask(new, start),
            position_ids=torch.tensor([places], device=device),
            past_key_values=self.cache,
            logits_to_keep=torch.tensor(keep or [0], device=device),
            **({"pixel_values": torch.cat(vision)} if vision else {}),
        ).logits[0]
        self.length = end
        return logits

    def _mask(self, new: slice, start: int) -> Tensor:
        """What is added to attention scores: 0 or the lowest number, (1, 1, new columns, columns from `start`)."""
        segments, rows = self.segment_of[start : new.stop], self.row_of[start : new.stop]
        columns = torch.arange(start, new.stop, device=rows.device)
        own = (rows == SHARED) | (rows == self.row_of[new, None])
        seen = own & (segments == self.segment_of[new, None]) & (columns <= columns[new.start - start :, None])
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=rows.device)
        return mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)[None, None]


def _pieces(rows: Sequence[Sequence[int]], batch: Sequence[Segment]) -> Iterator[Piece]:
    for index, segment in enumerate(batch):
        if segment.shared:
            yield Piece(index, SHARED, rows[segment.rows[0]][: segment.shared], 0)
        for row in segment.rows:
            yield Piece(index, row, rows[row][segment.shared :], segment.shared)


def _passes(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces in order, as many together as `PASS` allows, at least one."""
    group: list[Piece] = []
    for piece in pieces:
        if group and sum(len(each.tokens) for each in (*group, piece)) > PASS:
            yield group
            group = []
        group.append(piece)
    yield group


def _one_row(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces are a single row, for which a plain causal pass is right (and faster)."""
    return len({piece.segment for piece in pieces}) == 1 and len({piece.row for piece in pieces} - {SHARED}) <= 1
