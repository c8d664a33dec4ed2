"""Read rows that begin alike as one sequence: each shared prefix once, then every row's own suffix.

A token attends to the earlier tokens of its own row and to the prefix that its segment shares, which is what a causal
decoder sees of the row alone; suffixes cannot attend to each other. Nothing is padded, and the keys and values of a
prefix are computed and kept once. The columns of the sequence, and of the cache:

    prefix of segment 0 | suffix of row 0 | suffix of row 1 | prefix of segment 1 | ... | answers, token by token

Shapes: T = tokens of one pass, S = columns that it sees, H = heads, D = head size, V = vocabulary. The batch
dimension is always 1.
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from modeling_aligned_llava.inference.decoder_input import DecoderInput, NoSharedPrefix
from modeling_aligned_llava.inference.memory import budget
from modeling_aligned_llava.inference.prefix_plan import Segment


_TURNED_BY_LENGTH = {"dynamic", "longrope"}  # rotary embeddings that change with the longest row of a pass
ATTENTION = ("sdpa", "eager")  # they take a mask of ours
SHARED = -1  # instead of a row: the column belongs to all rows of its segment


def check_decoder(model: Any) -> None:
    """Check that the decoder of a model can read trees.

    Raises:
        NoSharedPrefix: it cannot.
    """
    config = model.config.get_text_config()
    if "logits_to_keep" not in inspect.signature(model.forward).parameters:
        raise NoSharedPrefix("it computes the logits of every token")
    if model._is_stateful or any(type(layer) is not DynamicLayer for layer in DynamicCache(config=config).layers):
        raise NoSharedPrefix("its decoder does not keep the keys and values of every token in every layer")
    if not model.is_backend_compatible() or config._attn_implementation not in ATTENTION:
        raise NoSharedPrefix(f"its {config._attn_implementation} attention takes no mask of ours")
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = {ropes.get("rope_type"), *(rope.get("rope_type") for rope in ropes.values() if isinstance(rope, dict))}
    if changing := kinds & _TURNED_BY_LENGTH:
        raise NoSharedPrefix(f"its rotary embedding changes with the longest row ({changing.pop()})")


def open_tree(model: Any, attempt: Callable[[], None] = lambda: None) -> "PrefixTree | None":
    """Return the reader of shared prefixes; None, after a warning with the reason, if the model cannot share them.

    Args:
        attempt: raises `NoSharedPrefix` if more than the decoder stands in the way.
    """
    try:
        check_decoder(model)
        attempt()
    except NoSharedPrefix as reason:
        logging.getLogger(__name__).warning("%s reads no shared prefixes: %s", model.config.model_type, reason)
        return None
    return PrefixTree(model)


@dataclass(frozen=True)
class Piece:
    """Consecutive tokens of a segment: its shared prefix (`row` is `SHARED`), or some of one row.

    Args:
        position: position id of the first token.
        embedded: what the decoder reads in place of the tokens, if there are images among them.
    """

    segment: int
    row: int
    tokens: Sequence[int]
    position: int
    embedded: DecoderInput | None = None


class BufferLayer(DynamicLayer):
    """Keys and values of one layer, (1, H, capacity, D), kept from batch to batch because allocation is slow.

    The capacity is that of the largest batch so far.

    The next pass appends its columns at `end` and sees the columns from `start` on.
    """

    def __init__(self) -> None:
        super().__init__()
        self.start = self.end = self.capacity = 0

    def reserve(self, capacity: int) -> None:
        """Forget all columns; a smaller buffer is replaced at the next update."""
        self.start, self.end, self.capacity = 0, 0, capacity

    def release(self) -> None:
        """Give up the buffers."""
        self.keys = self.values = None
        self.reserve(0)

    def keep(self, columns: Tensor, capacity: int) -> None:
        """Move the columns (indices, ascending) to the front, forget the others, and grow to `capacity`."""
        assert self.keys is not None and self.values is not None
        self.keys, self.values = (self._moved(old, columns, capacity) for old in (self.keys, self.values))
        self.start, self.end, self.capacity = 0, len(columns), capacity

    @staticmethod
    def _moved(old: Tensor, columns: Tensor, capacity: int) -> Tensor:
        grows = old.shape[-2] < capacity
        new = old.new_empty(*old.shape[:-2], capacity, old.shape[-1]) if grows else old
        new[:, :, : len(columns)] = old[:, :, columns]
        return new

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values, (1, H, T, D), and return those that the pass sees, (1, H, S, D)."""
        if self.keys is None or self.values is None or self.keys.shape[-2] < self.capacity:
            assert not self.end, "a buffer in use grows by `keep`"
            self.keys = self.values = None  # both are free before the new ones are allocated
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
        model: a causal or vision-language model of transformers that passes `check_decoder`.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        self.budget = budget(model)
        layers = len(DynamicCache(config=model.config.get_text_config()).layers)
        self.layers = [BufferLayer() for _ in range(layers)]
        self.cache = DynamicCache()
        self.cache.layers = list(self.layers)
        self.length = self.capacity = 0  # columns in use, and in the buffers
        self.segment_of_column = self.row_of_column = torch.empty(0)  # (capacity,)
        self.segment_of_row: dict[int, int] = {}
        self.next_position: dict[int, int] = {}  # by row
        self.shift: dict[int, int] = {}  # by segment

    def read(
        self,
        rows: Sequence[Sequence[int]],
        batch: Sequence[Segment],
        logits_to_keep: Mapping[int, int],
        reserve: int = 0,
        embed: Callable[[list[int]], dict[int, DecoderInput]] | None = None,
    ) -> Iterator[Tensor]:
        """Read a batch and yield the logits of the last tokens of each row, (logits_to_keep[row], V), pass by pass.

        Args:
            rows: token ids of all rows, with one image token for each visual token.
            batch: the segments to read; the result is in their order.
            logits_to_keep: how many logits of each row; all of them belong to its own suffix.
            reserve: columns for the tokens to be appended; if they are not enough, the buffers grow.
            embed: called with the segments (indices) that a pass opens; returns for those with images what the
                decoder reads for their first row. All images are in the shared prefix, or the row is alone.
        """
        # 1) Lay the batch out as pieces and reserve columns for them.
        pieces = list(_pieces(rows, batch))
        self._begin(rows, batch, sum(len(piece.tokens) for piece in pieces) + reserve)

        first_column: dict[int, int] = {}  # by segment
        for group in _groups(pieces, self.budget.tokens_per_pass):
            # 2) Find the segments that open in this pass, and the columns whose logits are needed.
            column = self.length
            keep: list[int] = []
            for piece in group:
                first_column.setdefault(piece.segment, column)
                column += len(piece.tokens)
                if piece.row != SHARED:
                    keep += range(column - logits_to_keep[piece.row] - self.length, column - self.length)

            # 3) What the decoder reads in place of images, and where the text after them continues.
            opened = [index for index in dict.fromkeys(p.segment for p in group) if first_column[index] >= self.length]
            embedded = embed(opened) if embed else {}
            for index, decoder_input in embedded.items():
                self._shift(batch[index], int(decoder_input.positions[0, -1]) + 1 - decoder_input.positions.shape[1])
            group = [self._placed(piece, batch[piece.segment].shared, embedded.get(piece.segment)) for piece in group]

            # 4) One pass, which sees the columns from its first segment on: logits is (len(keep), V).
            logits = self._forward(group, first_column[group[0].segment], keep)
            for piece in group:
                if piece.row != SHARED:
                    kept = logits_to_keep[piece.row]
                    yield logits[:kept]
                    logits = logits[kept:]

    def append(self, rows: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """Add one token to each of some rows of the batch and return its logits, (len(rows), V).

        Rows that are left out have ended; their columns are given up when the buffers are full.
        """
        if self.length + len(rows) > self.capacity:
            self._make_room(rows)
        pieces = [
            Piece(self.segment_of_row[row], row, [token], self.next_position[row])
            for row, token in zip(rows, tokens, strict=True)
        ]
        for row in rows:
            self.next_position[row] += 1
        return self._forward(pieces, 0, list(range(len(pieces))))

    def release(self) -> None:
        """Give up the buffers; the next batch allocates what it needs."""
        self.length = self.capacity = 0
        for layer in self.layers:
            layer.release()

    def _begin(self, rows: Sequence[Sequence[int]], batch: Sequence[Segment], columns: int) -> None:
        """Forget the previous batch and make room for `columns` columns."""
        self.capacity = max(self.capacity, columns)
        for layer in self.layers:
            layer.reserve(self.capacity)
        self.length = 0
        self.shift = {}
        self.segment_of_column, self.row_of_column = torch.full((2, self.capacity), SHARED, device=self.model.device)
        self.segment_of_row = {row: index for index, segment in enumerate(batch) for row in segment.rows}
        self.next_position = {row: len(rows[row]) for row in self.segment_of_row}

    def _make_room(self, rows: Sequence[int]) -> None:
        """Drop the columns that none of `rows` sees; if half of the buffers is still full, double them."""
        device, used = self.model.device, slice(0, self.length)
        owners, segments = self.row_of_column[used], self.segment_of_column[used]
        of_live_rows = torch.isin(owners, torch.tensor(rows, device=device))
        live = torch.tensor(sorted({self.segment_of_row[row] for row in rows}), device=device)
        columns = (of_live_rows | ((owners == SHARED) & torch.isin(segments, live))).nonzero()[:, 0]

        needed = len(columns) + len(rows)
        capacity = self.capacity if 2 * needed <= self.capacity else 2 * needed
        for layer in self.layers:
            layer.keep(columns, capacity)
        kept = torch.full((2, capacity), SHARED, device=device)
        kept[0, : len(columns)], kept[1, : len(columns)] = segments[columns], owners[columns]
        self.segment_of_column, self.row_of_column = kept
        self.length, self.capacity = len(columns), capacity

    def _shift(self, segment: Segment, by: int) -> None:
        """Move the positions of the text after the images of a segment (M-RoPE counts an image as its longer side)."""
        self.shift[self.segment_of_row[segment.rows[0]]] = by
        for row in segment.rows:
            self.next_position[row] += by

    def _placed(self, piece: Piece, shared: int, embedded: DecoderInput | None) -> Piece:
        """A piece with its images if it has any, else at its position after them."""
        if embedded is not None and (piece.row == SHARED or not shared):
            return replace(piece, embedded=embedded[: len(piece.tokens)])
        return replace(piece, position=piece.position + self.shift.get(piece.segment, 0))

    def _forward(self, pieces: Sequence[Piece], start: int, keep: list[int]) -> Tensor:
        """One pass over T new columns that sees the columns from `start` on: logits (len(keep), V)."""
        # 1) Tokens or embeddings, (1, T) or (1, T, D), and positions, (1, T) or (3, 1, T).
        device = self.model.device
        given = self._given(pieces)
        tokens = sum(len(piece.tokens) for piece in pieces)
        new = slice(self.length, self.length + tokens)

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
            **given,
            attention_mask=None if causal else self._mask(new, start),
            past_key_values=self.cache,
            logits_to_keep=torch.tensor(keep or [0], device=device),
        ).logits[0]
        self.length = new.stop
        return logits

    def _given(self, pieces: Sequence[Piece]) -> dict[str, Tensor]:
        """What the model reads: token ids, or embeddings if there are images, and the positions."""
        device = self.model.device
        ids = torch.tensor([[token for piece in pieces for token in piece.tokens]], device=device)
        text = [piece.position + offset for piece in pieces for offset in range(len(piece.tokens))]
        positions = torch.tensor([text], device=device)  # (1, T)
        images = [piece.embedded for piece in pieces if piece.embedded is not None]
        if not images:
            return {"input_ids": ids, "position_ids": positions}
        embeddings = self.model.get_input_embeddings()(ids)
        positions = positions.repeat(images[0].positions.shape[0], 1)  # (P, T)
        column = 0
        for piece in pieces:
            end = column + len(piece.tokens)
            if piece.embedded is not None:
                embeddings[0, column:end] = piece.embedded.embeddings
                positions[:, column:end] = piece.embedded.positions
            column = end
        return {"inputs_embeds": embeddings, "position_ids": positions if len(positions) == 1 else positions[:, None]}

    def _mask(self, new: slice, start: int) -> Tensor:
        """Which of the S columns each of the T new ones sees, (1, 1, T, S): added to scores."""
        segments, rows = self.segment_of_column[start : new.stop], self.row_of_column[start : new.stop]  # (S,)
        own_segments, own_rows = self.segment_of_column[new], self.row_of_column[new]  # (T,)
        columns = torch.arange(start, new.stop, device=rows.device)  # (S,)
        own_columns = columns[new.start - start :]  # (T,)
        same_row = (rows == SHARED) | (rows == own_rows[:, None])
        seen = same_row & (segments == own_segments[:, None]) & (columns <= own_columns[:, None])
        mask = torch.zeros(seen.shape, dtype=self.model.dtype, device=rows.device)
        return mask.masked_fill_(~seen, torch.finfo(mask.dtype).min)[None, None]


def _pieces(rows: Sequence[Sequence[int]], batch: Sequence[Segment]) -> Iterator[Piece]:
    """The shared prefix of each segment, followed by the suffixes of its rows."""
    for index, segment in enumerate(batch):
        if segment.shared:
            yield Piece(index, SHARED, rows[segment.rows[0]][: segment.shared], 0)
        for row in segment.rows:
            yield Piece(index, row, rows[row][segment.shared :], segment.shared)


def _groups(pieces: Sequence[Piece], tokens_per_pass: int) -> Iterator[list[Piece]]:
    """Pieces in order, as many together as fit into one pass, at least one."""
    group: list[Piece] = []
    for piece in pieces:
        if group and sum(len(member.tokens) for member in (*group, piece)) > tokens_per_pass:
            yield group
            group = []
        group.append(piece)
    yield group


def _is_one_row(pieces: Sequence[Piece]) -> bool:
    """Whether the pieces form a single row, for which the model's own causal mask is right (and faster)."""
    return len({piece.segment for piece in pieces}) == 1 and len({piece.row for piece in pieces} - {SHARED}) <= 1
