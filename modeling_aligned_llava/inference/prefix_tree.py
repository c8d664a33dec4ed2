"""Read rows that begin alike as one sequence: each shared prefix once, then every row's own suffix.

A token attends to the earlier tokens of its own row and to the prefix that its segment shares, which is what a causal
decoder sees of the row alone; suffixes cannot attend to each other. Nothing is padded, and the keys and values of a
prefix are computed and kept once. The columns of the sequence, and of the cache:

    prefix of segment 0 | suffix of row 0 | suffix of row 1 | prefix of segment 1 | ... | answers, token by token

Shapes: T = tokens of one pass, S = columns that it sees, H = heads, D = head size, V = vocabulary. The batch
dimension is always 1.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from modeling_aligned_llava.inference.prefix_plan import Segment


CACHE_TOKENS = 16_384  # columns of the cache, unless one segment needs more
MAX_TOKENS_PER_FORWARD = 1_024  # enough to keep a machine busy; attention is quadratic in it
SHARED = -1  # instead of a row: the column belongs to all rows of its segment


def can_read_trees(model: Any) -> bool:
    """Whether the decoder caches plain keys and values in every layer (no window, no recurrent state) and accepts a
    ready-made attention mask."""
    config = model.config.get_text_config()
    plain_cache = all(type(layer) is DynamicLayer for layer in DynamicCache(config=config).layers)
    takes_mask = model._supports_attention_backend and config._attn_implementation in ("sdpa", "eager")
    return takes_mask and plain_cache and not model._is_stateful


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a segment: its shared prefix (`row` is `SHARED`), or some of one row.

    Args:
        position: position id of the first token.
    """

    segment: int
    row: int
    tokens: Sequence[int]
    position: int


class BufferLayer(DynamicLayer):
    """Keys and values of one layer, (1, H, capacity, D), kept from batch to batch because allocation is slow.

    The next pass appends its columns at `end` and sees the columns from `start` on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start = self.end = self.capacity = 0

    def reserve(self, capacity: int) -> None:
        """Forget all columns; a smaller buffer grows to `capacity` at the next update."""
        self.start, self.end, self.capacity = 0, 0, capacity

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values, (1, H, T, D), and return those that the pass sees, (1, H, S, D)."""
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


class PrefixTree:
    """The rows of one batch in a model's cache: `read` starts a batch, `append` extends its rows.

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
        self.segment_of_column = self.row_of_column = torch.empty(0)  # (capacity,)
        self.segment_of_row: dict[int, int] = {}
        self.next_position: dict[int, int] = {}  # by row

    def read(
        self,
        rows: Sequence[Sequence[int]],
        batch: Sequence[Segment],
        logits_to_keep: Mapping[int, int],
        max_new_tokens: int = 0,
        pixel_values: Sequence[Tensor | None] = (),
    ) -> list[Tensor]:
        """Read a batch and return the logits of the last tokens of each row, (logits_to_keep[row], V).

        Args:
            rows: token ids of all rows, with one image token for each patch.
            batch: the segments to read; the result is in their order.
            logits_to_keep: how many logits of each row; all of them belong to its own suffix.
            max_new_tokens: how many tokens `append` may add to each row.
            pixel_values: images (images, 3, height, width) of each segment, or None; a segment that shares nothing
                has one row. Empty for text.
        """
        # 1) Lay the batch out as pieces and reserve columns for them and for the answers.
        pieces = list(_pieces(rows, batch))
        members = [row for segment in batch for row in segment.rows]
        self._begin(rows, batch, sum(len(piece.tokens) for piece in pieces) + len(members) * max_new_tokens)

        first_column: dict[int, int] = {}  # by segment
        logits: dict[int, Tensor] = {}
        for group in _groups(pieces):
            # 2) Find the segments that open in this pass, and the columns whose logits are needed.
            column = self.length
            keep: list[int] = []
            for piece in group:
                first_column.setdefault(piece.segment, column)
                column += len(piece.tokens)
                if piece.row != SHARED:
                    keep += range(column - logits_to_keep[piece.row] - self.length, column - self.length)
            opened = [index for index in dict.fromkeys(p.segment for p in group) if first_column[index] >= self.length]
            images = [pixel_values[index] for index in opened] if pixel_values else []

            # 3) One pass, which sees the columns from its first segment on: found is (len(keep), V).
            start = first_column[group[0].segment]
            found = self._forward(group, start, keep, [each for each in images if each is not None])

            # 4) Hand the logits to their rows.
            for piece in group:
                if piece.row != SHARED:
                    own = logits_to_keep[piece.row]
                    logits[piece.row], found = found[:own], found[own:]
        return [logits[row] for row in members]

    def append(self, rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Add one token to each of some rows of the batch and return its logits, (len(rows), V)."""
        pieces = [
            Piece(self.segment_of_row[row], row, [token], self.next_position[row])
            for row, token in zip(rows, tokens, strict=True)
        ]
        for row in rows:
            self.next_position[row] += 1
        return self._forward(pieces, 0, list(range(len(pieces))), [])

    def _begin(self, rows: Sequence[Sequence[int]], batch: Sequence[Segment], columns: int) -> None:
        """Forget the previous batch and make room for `columns` columns."""
        capacity = max(CACHE_TOKENS, columns)
        for layer in self.layers:
            layer.reserve(capacity)
        self.length = 0
        self.segment_of_column, self.row_of_column = torch.full((2, capacity), SHARED, device=self.model.device)
        self.segment_of_row = {row: index for index, segment in enumerate(batch) for row in segment.rows}
        self.next_position = {row: len(rows[row]) for row in self.segment_of_row}

    def _forward(self, pieces: Sequence[Piece], start: int, keep: list[int], images: list[Tensor]) -> Tensor:
        """One pass over T new columns that sees the columns from `start` on: logits (len(keep), V)."""
        # 1) Tokens and positions, (1, T).
        device = self.model.device
        input_ids = torch.tensor([[token for piece in pieces for token in piece.tokens]], device=device)
        positions = [piece.position + offset for piece in pieces for offset in range(len(piece.tokens))]
        new = slice(self.length, self.length + input_ids.shape[1])

        # 2) Note the segment and the row of every new column.
        lengths = torch.tensor([len(piece.tokens) for piece in pieces], device=device)
        segments = torch.tensor([piece.segment for piece in pieces], device=device)
        owners = torch.tensor([piece.row for piece in pieces], device=device)
        self.segment_of_column[new] = segments.repeat_interleave(lengths)
        self.row_of_column[new] = owners.repeat_interleave(lengths)

        # 3) Run the model; a single row needs no mask of ours.
        for layer in self.layers:
            layer.start = start
        causal = start == self.length and _is_one_row(pieces)
        logits = self.model(
            input_ids=input_ids,
            attention_mask=None if causal else self._attention_mask(new, start),
            position_ids=torch.tensor([positions], device=device),
            past_key_values=self.cache,
            logits_to_keep=torch.tensor(keep or [0], device=device),
            **({"pixel_values": torch.cat(images)} if images else {}),
        ).logits[0]
        self.length = new.stop
        return logits

    def _attention_mask(self, new: slice, start: int) -> Tensor:
        """The mask added to attention scores, 0 or the lowest number, (1, 1, T, S)."""
        segments, rows = self.segment_of_column[start : new.stop], self.row_of_column[start : new.stop]  # (S,)
        columns = torch.arange(start, new.stop, device=rows.device)  # (S,)
        same_row = (rows == SHARED) | (rows == self.row_of_column[new, None])  # (T, S)
        same_segment = segments == self.segment_of_column[new, None]
        not_later = columns <= columns[new.start - start :, None]
        visible = same_row & same_segment & not_later
        mask = torch.zeros(visible.shape, dtype=self.model.dtype, device=rows.device)
        return mask.masked_fill_(~visible, torch.finfo(mask.dtype).min)[None, None]


def _pieces(rows: Sequence[Sequence[int]], batch: Sequence[Segment]) -> Iterator[Piece]:
    """The shared prefix of each segment, followed by the suffixes of its rows."""
    for index, segment in enumerate(batch):
        if segment.shared:
            yield Piece(index, SHARED, rows[segment.rows[0]][: segment.shared], 0)
        for row in segment.rows:
            yield Piece(index, row, rows[row][segment.shared :], segment.shared)


def _groups(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces in order, as many together as fit into one pass, at least one."""
    group: list[Piece] = []
    for piece in pieces:
        if group and sum(len(each.tokens) for each in (*group, piece)) > MAX_TOKENS_PER_FORWARD:
            yield group
            group = []
        group.append(piece)
    yield group


def _is_one_row(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces form a single row, for which the model's own causal mask is right (and faster)."""
    return len({piece.segment for piece in pieces}) == 1 and len({piece.row for piece in pieces} - {SHARED}) <= 1
