"""Rows read from parquet or the Hub during training, without storing them: checked, tokenized and decoded on the fly.

A stream cannot go back to another row, so a damaged row is skipped instead of replaced. Rows come in the order of
the files, shuffled in a buffer; their lengths are not known in advance, so they are not grouped by length. Of several
files, rows are numbered in the order in which a process reads them: there the id tells which one is meant.
"""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets import Features, IterableDataset, Value, interleave_datasets
from PIL.Image import Image

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image
from train.data.conversations import BadRow, EmbeddedImage, text_of
from train.data.prepared import BAD_IMAGE, bad_entry, check_row, usable_rows
from train.data.quarantine import Entry, Quarantine
from train.data.sources import Source, table
from train.data.tokenization import RowEncoder


BUFFER = 1000  # size of the shuffle buffer in rows
_BATCH = 16
_ROW = "row number"
_ENOUGH = 1000  # rows to read before the share of damaged rows is meaningful


def open_stream(sources: list[Source], encoder: RowEncoder, quarantine: Quarantine, seed: int) -> IterableDataset:
    """An endless stream of rows as the collator reads them, `images` as bytes, mixed according to the weights.

    Raises:
        UserError: a source is JSON, which is not streamed, or cannot be read; while reading, the share of damaged
            rows exceeds the limit of the quarantine.
    """
    streams = []
    for number, source in enumerate(sources):
        raw = _numbered(_raw_stream(source)).shuffle(seed=seed + number, buffer_size=BUFFER)
        prepare = _Prepare(source, encoder, quarantine)
        streams.append(raw.map(prepare, batched=True, batch_size=_BATCH, remove_columns=raw.column_names))
    if len(streams) == 1:
        return streams[0].repeat(None)
    total = sum(source.weight for source in sources)
    shares = [source.weight / total for source in sources]
    return interleave_datasets(streams, probabilities=shares, seed=seed, stopping_strategy="all_exhausted").repeat(
        None
    )


def images_of_stream(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Image]]:
    """The rows and their images, for the collator; the stream has checked that the images can be opened."""
    return rows, [open_image(content) for row in rows for content in row["images"]]


def first_streamed(sources: list[Source]) -> Iterator[bytes]:
    """The images of the data in order, as bytes, skipping those that cannot be opened."""
    for source in sources:
        for row in _raw_stream(source):
            for content in _contents(row).values():
                with suppress(UserError):
                    open_image(content, "an image")
                    yield content


def streamed_texts(sources: list[Source]) -> Iterator[str]:
    """The text of the usable rows in order."""
    for source in sources:
        for number, row in enumerate(_raw_stream(source)):
            checked = check_row(source, number, _named(row))
            if isinstance(checked, dict):
                yield text_of(checked["messages"])


def _raw_stream(source: Source) -> IterableDataset:
    if source.is_text:
        raise UserError(f"streaming is for parquet and Hub datasets, not for {source.path}")
    stream = table(source, streaming=True)
    assert isinstance(stream, IterableDataset)
    return stream


def _numbered(stream: IterableDataset) -> IterableDataset:
    """Add the number of each row, which is lost when rows are shuffled."""
    features = stream.features and Features({**stream.features, _ROW: Value("int64")})
    return stream.map(
        lambda batch, numbers: {_ROW: numbers}, batched=True, batch_size=_BATCH, with_indices=True, features=features
    )


class _Prepare:
    """Turn a batch of raw rows into its usable rows."""

    def __init__(self, source: Source, encoder: RowEncoder, quarantine: Quarantine):
        self.source, self.encoder = source, encoder
        self.quarantine = quarantine
        self.seen = self.left_out = self.damaged = 0

    def __call__(self, batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        numbers = batch.pop(_ROW)
        raw = [dict(zip(batch, cells, strict=True)) for cells in zip(*batch.values(), strict=True)]
        named = [_named(row) for row in raw]
        contents = [_contents(row) for row in raw]
        by_number = dict(zip(numbers, contents, strict=True))
        rows = usable_rows(self.source, self.encoder, named, numbers, lambda row, name: by_number[row][name])
        columns: dict[str, list[Any]] = {name: [] for name in (*self.encoder.columns, "images")}
        for row, cells in zip(rows, contents, strict=True):
            self.seen += 1
            opened = row if isinstance(row, Entry) else self._opened(row, cells)
            if isinstance(opened, Entry):
                self._leave_out(opened)
                continue
            for name, values in columns.items():
                values.append(opened[name])
        return self.encoder.expanded(columns)

    def _opened(self, row: dict[str, Any], contents: dict[str, bytes]) -> dict[str, Any] | Entry:
        images = [contents[name] if name in contents else Path(name).read_bytes() for name in row["images"]]
        try:
            for content in images:
                open_image(content, f"{self.source.path}, row {row['row']}: image")
        except UserError as error:
            return bad_entry(self.source, row["row"], row["id"], BadRow(BAD_IMAGE, str(error)))
        return {**row, "images": images}

    def _leave_out(self, entry: Entry) -> None:
        self.quarantine.add(entry._replace(found="training"))
        self.left_out += 1
        self.damaged += not entry.filtered
        if self.left_out == self.seen >= _ENOUGH:  # the trainer would take an empty stream for the end of its data
            raise UserError(
                f"none of the first {self.seen} rows of {self.source.path} can be used; "
                f"they are listed in {self.quarantine.path}"
            )
        if self.damaged > self.quarantine.limit * max(self.seen, _ENOUGH):
            raise UserError(
                f"{self.damaged} of the first {self.seen} rows of {self.source.path} are damaged, more than the "
                f"{self.quarantine.limit:.2%} of bad_rows_limit; they are listed in {self.quarantine.path}"
            )


def _named(raw: dict[str, Any]) -> dict[str, Any]:
    """The row with the names of its images, embedded or files."""
    return {**raw, "image": [*_contents(raw), *_file_names(raw)]}


def _cells(raw: dict[str, Any]) -> list[Any]:
    value = raw.get("image", raw.get("images"))
    return [] if value is None else value if isinstance(value, list) else [value]


def _contents(raw: dict[str, Any]) -> dict[str, bytes]:
    """The embedded images of a row by `EmbeddedImage` name."""
    cells = [cell for cell in _cells(raw) if isinstance(cell, dict)]
    return {
        EmbeddedImage(f"{EmbeddedImage.PREFIX}{i}"): cell["bytes"] for i, cell in enumerate(cells) if cell["bytes"]
    }


def _file_names(raw: dict[str, Any]) -> list[Any]:
    """The files that a row names, for those of its images that are not embedded."""
    cells = [cell for cell in _cells(raw) if not (isinstance(cell, dict) and cell["bytes"])]
    return [cell["path"] if isinstance(cell, dict) else cell for cell in cells]
