"""Check, tokenize and filter every row once, into a memory-mapped file that all methods and later runs share.

Images stay paths; the workers open them during training.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache as cache_results
from pathlib import Path
from typing import Any

import datasets
import joblib
import numpy as np
import pyarrow as pa
from datasets import Dataset, Features, List, Value, concatenate_datasets

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import disk_errors_named, lock_for
from modeling_aligned_llava.loading.fingerprint import hash_code, hash_text, versions
from modeling_aligned_llava.loading.images import read_size
from train.data.held_out import Part, held_out
from train.data.quarantine import Entry
from train.data.row import NO_FILE, BadRow, EmbeddedImage, image_files, images_and_turns, messages_of, text_of
from train.data.row_tokens import RowTokens
from train.data.sources import IMAGES, Source, parsed_rows, raw_table
from train.data.worker_processes import workers_end_with_us


BAD_IMAGE = "the image cannot be used"

_BATCH = 500
_ROWS_A_PROCESS = 10_000  # checking fewer takes less time than starting another process
_PREPARED = Features(
    {
        "images": List(Value("string")),
        "bytes": List(Value("int64")),  # of each image
        "content": Value("int64"),  # a digest of the row
        "row": Value("int32"),
        "fault": Value("string"),  # an `Entry` as JSON; null if the row is usable
    }
)


@dataclass
class TrainingData:
    """The rows of a stage.

    Args:
        dataset: rows to train on, as the encoder stores them, with `images` (paths, or names of embedded images), and
            `source` and `row`, the origin of a row.
        sources: the sources that `source` numbers.
        raw: the raw rows of each source, with their embedded images.
        bad_rows: the rows left out, filtered or damaged.
        opened: number of all rows, usable or not.
        evaluation: rows held out from training, if any.
    """

    dataset: Dataset
    sources: list[Source]
    raw: list[Dataset]
    bad_rows: list[Entry]
    opened: int
    evaluation: Dataset | None = None

    def fingerprint(self) -> str:
        """Identify the rows and their order, wherever data and cache lie."""
        digest = hashlib.sha256()
        for rows in (self.dataset, *([] if self.evaluation is None else [self.evaluation])):
            digest.update(len(rows).to_bytes(8, "little") + read_column(rows, "content").tobytes())
        return digest.hexdigest()[:32]


def open_training_data(
    sources: list[Source], encoder: RowTokens, cache: str | Path | None = None, seed: int = 0, eval_rows: int = 0
) -> TrainingData:
    """Open, check, tokenize and filter the rows of every source, or take them from the cache.

    Args:
        sources: the mixture.
        encoder: how rows are stored.
        cache: folder for prepared rows; by default in the cache of `datasets`.
        seed: chooses the rows that are held out, and those of a source whose weight is not an integer.
        eval_rows: about how many rows are held out.

    Raises:
        UserError: a source cannot be read, or has no rows, or too few to hold some out.
    """
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    root = prepared_root(cache)
    tables, usable, raws, bad_rows, opened = [], [], [], [], 0
    for number, source in enumerate(sources):
        raw = raw_table(source, str(root))
        rows = _prepared(source, raw, encoder, root)
        bad_rows += _bad_rows(rows)
        opened += len(raw)
        raws.append(raw)
        usable.append(np.flatnonzero(rows.data["fault"].is_null()))
        tables.append(rows.remove_columns("fault").add_column("source", np.full(len(rows), number, dtype=np.int16)))  # type: ignore[call-arg]
    held = _held_out(sources, raws, tables, usable, eval_rows, seed)
    chosen = [
        (_weighted(numbers[~apart], source.weight, seed + number), numbers[apart])
        for number, (source, numbers, apart) in enumerate(zip(sources, usable, held, strict=True))
    ]
    sides = (
        [t.select(numbers) for t, numbers in zip(tables, side, strict=True)] for side in zip(*chosen, strict=True)
    )
    train, evaluation = (concatenate_datasets(side).with_transform(encoder.expanded) for side in sides)
    return TrainingData(train, sources, raws, bad_rows, opened, evaluation if eval_rows else None)


def _held_out(
    sources: list[Source], raws: list[Dataset], tables: list[Dataset], usable: list[np.ndarray], wanted: int, seed: int
) -> list[np.ndarray]:
    """Whether each usable row of each source is held out; images are the same if their files have the same bytes."""
    if not wanted or not sum(map(len, usable)):
        return [np.zeros(len(numbers), dtype=bool) for numbers in usable]

    @cache_results
    def content(image: tuple[int, str]) -> bytes:
        source, name = image
        embedded = name.startswith(EmbeddedImage.PREFIX) and not sources[source].is_text
        read = name.encode()  # of a file that has gone
        with suppress(OSError):
            read = embedded_bytes(raws[source].data, name) if embedded else Path(name).read_bytes()
        return hashlib.sha256(read).digest()

    parts: list[list[Part]] = []
    for number, (table, numbers) in enumerate(zip(tables, usable, strict=True)):
        rows = table.select(numbers).with_format("arrow")[:]
        for images, sizes, text in zip(
            *(rows[name].to_pylist() for name in ("images", "bytes", "content")), strict=True
        ):
            looks: list[Part] = [(size, (number, image)) for image, size in zip(images, sizes, strict=True)]
            parts.append(looks or [(("text", text), None)])
    weights = np.repeat([source.weight for source in sources], [len(numbers) for numbers in usable])
    return np.split(
        held_out(parts, content, weights, wanted, seed), np.cumsum([len(numbers) for numbers in usable])[:-1]
    )


def row_lengths(dataset: Dataset) -> np.ndarray:
    """The number of tokens of each row, without reading the rows."""
    return read_column(dataset, "length")


def read_column(dataset: Dataset, name: str) -> np.ndarray:
    """One column of numbers. Reading it through `datasets` would copy all columns, and hold each row as a table."""
    values = dataset.data.column(name).fill_null(0).to_numpy()  # rows that are left out have no value
    return values if dataset._indices is None else values[dataset._indices.column(0).to_numpy()]


def checked_rows(source: Source, raw: Dataset) -> Iterator[dict[str, Any] | Entry]:
    """Every row of a source as `check_row` returns it."""
    number = 0
    for batch in raw.with_format("arrow").iter(_BATCH):
        for row in parsed_rows(batch, number):
            yield check_row(source, number, row)
            number += 1


def usable_rows(source: Source, encoder: RowTokens, batch: pa.Table, first: int) -> list[dict[str, Any] | Entry]:
    """The raw rows from number `first` on, each as `{"id", "row", "images"}` with what the encoder stores, or as what
    is wrong with it."""
    rows = [check_row(source, number, row) for number, row in enumerate(parsed_rows(batch, first), first)]
    if encoder.reads_sizes:
        rows = [row if isinstance(row, Entry) else _with_sizes(source, row, batch, first) for row in rows]
    good = [row for row in rows if isinstance(row, dict)]
    tokens = iter(encoder(good) if good else [])
    return [row if isinstance(row, Entry) else _with_tokens(source, row, next(tokens)) for row in rows]


def _with_sizes(source: Source, row: dict[str, Any], batch: pa.Table, first: int) -> dict[str, Any] | Entry:
    try:
        names = row["images"]
        files = [embedded_bytes(batch, name, first) if isinstance(name, EmbeddedImage) else name for name in names]
        return {**row, "sizes": [read_size(file, name) for file, name in zip(files, names, strict=True)]}
    except UserError as error:
        return bad_entry(source, row["row"], row["id"], BadRow(BAD_IMAGE, str(error)))


def _with_tokens(source: Source, row: dict[str, Any], tokens: dict[str, Any] | BadRow) -> dict[str, Any] | Entry:
    if isinstance(tokens, BadRow):
        return bad_entry(source, row["row"], row["id"], tokens)
    sizes = [name.size if isinstance(name, EmbeddedImage) else os.path.getsize(name) for name in row["images"]]
    names = [name.removeprefix(str(source.image_folder)) for name in row["images"]]  # wherever the folder lies
    digest = hashlib.blake2b(repr((names, sizes, tokens)).encode(), digest_size=8).digest()
    content = int.from_bytes(digest, "little", signed=True)
    return {"id": row["id"], "row": row["row"], "images": row["images"], "bytes": sizes, "content": content, **tokens}


def check_row(source: Source, number: int, raw: Any) -> dict[str, Any] | Entry:
    """One raw row as `{"id", "row", "messages", "images"}`, or as what is wrong with it."""
    name = None
    try:
        if isinstance(raw, ValueError):
            raise BadRow("the line is not JSON", str(raw))
        if not isinstance(raw, dict):
            raise BadRow("the row is not an object with conversations")
        name = str(raw["id"])[:200] if raw.get("id") is not None else None
        image, turns = images_and_turns(raw)
        images = image_files(image, source.image_folder)
        messages = messages_of(turns, len(images))
    except BadRow as fault:
        return bad_entry(source, number, name, fault)
    return {"id": name, "row": number, "messages": messages, "images": images}


def first_rows(sources: list[Source], cache: str | None) -> Iterator[tuple[Source, Dataset, dict[str, Any]]]:
    """The usable rows in order, as `check_row` returns them, each with its source and the source's raw rows."""
    for source in sources:
        raw = raw_table(source, str(prepared_root(cache)))
        yield from ((source, raw, row) for row in checked_rows(source, raw) if isinstance(row, dict))


def first_texts(sources: list[Source], cache: str | None = None) -> Iterator[str]:
    """The text of the usable rows in order."""
    return (text_of(row["messages"]) for _, _, row in first_rows(sources, cache))


def embedded_bytes(rows: Any, name: str, first: int = 0) -> bytes:
    """The image file that an `EmbeddedImage` names, in a table of raw rows from number `first` on."""
    row, number = map(int, name.removeprefix(EmbeddedImage.PREFIX).split(":"))
    cells = (rows.column(column)[row - first].as_py() for column in IMAGES if column in rows.column_names)
    cell = next(cell for cell in cells if cell)
    return (cell[number] if isinstance(cell, list) else cell)["bytes"]


def prepared_root(cache: str | Path | None) -> Path:
    """The folder of prepared rows: `cache`, or one in the cache of `datasets`."""
    return Path(cache) if cache else Path(datasets.config.HF_DATASETS_CACHE) / "aligned_llava"


def bad_entry(source: Source, row: int, name: str | None, fault: BadRow) -> Entry:
    """The entry of a bad row in the quarantine file."""
    detail = str(fault).removeprefix(fault.reason).removeprefix(": ")
    return Entry(source.path, row, name, fault.reason, detail, filtered=fault.filtered)


def _prepared(source: Source, raw: Dataset, encoder: RowTokens, root: Path) -> Dataset:
    """For each raw row, its tokens or what is wrong with it. One process prepares them while others wait.

    Raises:
        UserError: the chat template marks no supervised tokens, or drops images, or the disk is full.
    """
    file = root / f"{_fingerprint(source, raw, encoder)}.arrow"
    processes = min(joblib.cpu_count(), len(raw) // _ROWS_A_PROCESS)

    def prepare() -> Dataset:
        return raw.with_format("arrow").map(
            _prepare,
            fn_kwargs={"source": source, "encoder": encoder},
            batched=True,
            batch_size=_BATCH,
            with_indices=True,
            remove_columns=raw.column_names,
            features=Features({**encoder.columns, **_PREPARED}),
            num_proc=processes if processes > 1 else None,
            cache_file_name=str(file),
            new_fingerprint=file.stem,
            desc=f"checking {source.path}",
        )

    with disk_errors_named(file), lock_for(file), workers_end_with_us():
        rows = prepare()
        if any(entry.reason == NO_FILE and os.path.isfile(entry.detail) for entry in _bad_rows(rows)):
            for made in rows.cache_files:  # a missing file has appeared
                os.unlink(made["filename"])
            rows = prepare()
    return rows.with_format(None)


def _prepare(batch: pa.Table, numbers: list[int], source: Source, encoder: RowTokens) -> pa.Table:
    rows = usable_rows(source, encoder, batch, numbers[0])
    cells = [{"fault": row.line()} if isinstance(row, Entry) else row for row in rows]
    return pa.Table.from_pylist(cells, schema=Features({**encoder.columns, **_PREPARED}).arrow_schema)


def _bad_rows(rows: Dataset) -> list[Entry]:
    return [Entry(**json.loads(line)) for line in rows.data["fault"].drop_null().to_pylist()]


def _fingerprint(source: Source, raw: Dataset, encoder: RowTokens) -> str:
    """Identify everything that the prepared rows depend on, including code and versions."""
    code = (
        hash_code(__name__, type(encoder).__module__),
        versions(("transformers", "tokenizers", "datasets", "pillow")),
    )
    folder = None if source.image_folder is None else os.path.join(source.image_folder, "")
    return hash_text(repr((raw._fingerprint, folder, *code, *encoder.settings())))[:32]


def _weighted(usable: np.ndarray, weight: float, seed: int) -> np.ndarray:
    """Indices of the rows: all as often as the integer part of the weight, and a random share for its fraction."""
    whole, fraction = divmod(weight, 1)
    order = np.random.default_rng(seed).permutation(len(usable))
    some = np.sort(order[: round(fraction * len(usable))])
    return np.concatenate([*[usable] * int(whole), usable[some]])
