"""Opens the training data: every row checked, tokenized and filtered once, into a memory-mapped file that later runs
and all arms share. Paths stay paths; images are opened by the workers.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image
from train.data.conversations import NO_FILE, BadRow, InsideImage, image_files, messages_of
from train.data.quarantine import Entry, read_entries
from train.data.sources import Source, raw_rows, table
from train.data.tokenization import Tokenization, expand


_BATCH = 500
_SCHEMA = pa.schema(
    {
        "input_ids": pa.list_(pa.int32()),
        "learned": pa.list_(pa.int8()),
        "length": pa.int32(),
        "images": pa.list_(pa.string()),
        "row": pa.int32(),
    }
)


@dataclass
class TrainingData:
    """What a stage is trained on.

    Args:
        dataset: rows of `input_ids`, `labels`, `length`, `images` (paths, or names of images inside the data), and
            `source` and `row`, which say where a row is from.
        sources: what `source` numbers.
        inside: for each source the table that its images lie in, or None.
        bad_rows: the rows that opening left out.
        opened: rows there were, used or not.
    """

    dataset: Dataset
    sources: list[Source]
    inside: list[Dataset | None]
    bad_rows: list[Entry]
    opened: int


def open_training_data(
    sources: list[Source], tokenization: Tokenization, cache: str | Path | None = None, seed: int = 0
) -> TrainingData:
    """Open, check, tokenize and filter the rows of every source, or take them from the cache.

    Args:
        sources: the mixture.
        tokenization: how rows become tokens.
        cache: folder for what was prepared; default: beside what `datasets` caches.
        seed: picks the rows of a source whose weight is not whole.

    Raises:
        UserError: a source cannot be read, or none of its rows can be used.
    """
    root = _root(cache)
    parts, inside, bad_rows, opened = [], [], [], 0
    for number, source in enumerate(sources):
        data = _inside_table(source, root)
        prepared = _Prepared(root, source, data, tokenization)
        prepared.make()
        bad_rows += prepared.bad_rows
        opened += prepared.opened
        inside.append(data)
        rows = Dataset.from_file(str(prepared.rows_file))
        rows = rows.add_column("source", np.full(len(rows), number, dtype=np.int16))  # type: ignore[call-arg]
        parts.append(_weighted(rows, source.weight, seed + number))
    dataset = concatenate_datasets(parts) if len(parts) > 1 else parts[0]
    to_training = partial(
        _expanded, image_token_id=tokenization.image_token_id, image_tokens=tokenization.image_tokens
    )
    return TrainingData(dataset.with_transform(to_training), sources, inside, bad_rows, opened)


def row_lengths(dataset: Dataset) -> np.ndarray:
    """Tokens of every row, without reading the rows."""
    return dataset.with_format("numpy", columns=["length"])["length"][:]


def checked_rows(source: Source, data: Dataset | None) -> Iterator[dict[str, Any] | Entry]:
    """Every row of a source as `{"id", "row", "messages", "images"}`, or as what is wrong with it."""
    for number, raw in enumerate(raw_rows(source, data)):
        yield check_row(source, number, raw)


def check_row(source: Source, number: int, raw: Any) -> dict[str, Any] | Entry:
    """One raw row as `{"id", "row", "messages", "images"}`, or as what is wrong with it."""
    name = None
    try:
        if isinstance(raw, ValueError):
            raise BadRow("the line is not JSON", str(raw))
        if not isinstance(raw, dict):
            raise BadRow("the row is no object with conversations")
        name = str(raw["id"])[:200] if raw.get("id") is not None else None
        images = image_files(raw.get("image"), source.image_folder)
        messages = messages_of(raw.get("conversations"), len(images))
    except BadRow as fault:
        return bad_entry(source, number, name, fault)
    return {"id": name, "row": number, "messages": messages, "images": images}


def first_images(sources: list[Source], cache: str | None = None) -> Iterator[str | bytes]:
    """The images of the data in their order, as paths or bytes, without those that cannot be opened."""
    for source in sources:
        data = _inside_table(source, _root(cache))
        for row in checked_rows(source, data):
            for name in row["images"] if isinstance(row, dict) else ():
                image = inside_bytes(data, name) if data is not None and isinstance(name, InsideImage) else name
                with suppress(UserError):
                    open_image(image)
                    yield image


def inside_bytes(data: Dataset, name: str) -> bytes:
    """The file that an `InsideImage` names."""
    row, number = map(int, name.removeprefix(InsideImage.PREFIX).split(":"))
    cell = data[row]["image" if "image" in data.column_names else "images"]
    return (cell[number] if isinstance(cell, list) else cell)["bytes"]


def _root(cache: str | Path | None) -> Path:
    return Path(cache) if cache else Path(datasets.config.HF_DATASETS_CACHE) / "aligned_llava"


def _inside_table(source: Source, root: Path) -> Dataset | None:
    """The table that the images of a source lie in, if any."""
    if source.is_text:
        return None
    data = table(source, cache=str(root))
    assert isinstance(data, Dataset)
    return data


def bad_entry(source: Source, row: int, name: str | None, fault: BadRow) -> Entry:
    """What the quarantine file says of a bad row."""
    return Entry(source.path, row, name, fault.reason, str(fault).removeprefix(fault.reason).removeprefix(": "))


class _Prepared:
    """The folder of one source prepared in one way: `rows.arrow`, `bad_rows.jsonl`, `summary.json`."""

    def __init__(self, root: Path, source: Source, data: Dataset | None, tokenization: Tokenization):
        self.source, self.data, self.tokenization = source, data, tokenization
        self.folder = root / _fingerprint(source, data, tokenization)
        self.rows_file = self.folder / "rows.arrow"

    @cached_property
    def bad_rows(self) -> list[Entry]:
        return read_entries(self.folder / "bad_rows.jsonl")

    @property
    def opened(self) -> int:
        return json.loads((self.folder / "summary.json").read_text(encoding="utf-8"))["rows"]

    def make(self) -> None:
        """Prepare the rows unless they are there."""
        if self.folder.exists():
            if not any(entry.reason == NO_FILE and os.path.isfile(entry.detail) for entry in self.bad_rows):
                return
            shutil.rmtree(self.folder)
            del self.bad_rows
        unfinished = self.folder.with_name(f".{self.folder.name}.{os.getpid()}")
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(parents=True)
        try:
            self._write(unfinished)
            if not self.folder.exists():  # another process may have been faster
                os.replace(unfinished, self.folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _write(self, folder: Path) -> None:
        rows = used = 0
        with (
            pa.OSFile(str(folder / "rows.arrow"), "wb") as file,
            pa.ipc.new_stream(file, _SCHEMA) as writer,
            (folder / "bad_rows.jsonl").open("w", encoding="utf-8") as bad,
            _progress() as progress,
        ):
            task = progress.add_task(f"checking {self.source.path}", total=None, rate="")
            stream = checked_rows(self.source, self.data)
            while block := list(islice(stream, _BATCH)):
                rows += len(block)
                good = [row for row in block if isinstance(row, dict)]
                tokenized = self.tokenization(good) if good else []
                entries = [row for row in block if isinstance(row, Entry)]
                kept = []
                for row, tokens in zip(good, tokenized, strict=True):
                    if isinstance(tokens, BadRow):
                        entries.append(bad_entry(self.source, row["row"], row["id"], tokens))
                    else:
                        kept.append({**tokens, "images": row["images"], "row": row["row"]})
                bad.writelines(entry.line() for entry in entries)
                used += len(kept)
                writer.write_batch(pa.RecordBatch.from_pylist(kept, schema=_SCHEMA))
                seconds = progress.tasks[0].elapsed or 0
                progress.update(task, completed=rows, rate=f"{rows / seconds:,.0f} rows/s" if seconds else "")
        if not rows:
            raise UserError(f"{self.source.path} has no rows")
        summary = {"source": self.source.path, "rows": rows, "used": used}
        (folder / "summary.json").write_text(json.dumps(summary) + "\n", encoding="utf-8")


def _progress() -> Progress:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    console = Console()
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _fingerprint(source: Source, data: Dataset | None, how: Tokenization) -> str:
    """Names everything that the prepared rows depend on, this code included."""
    code = [Path(__file__).with_name(f"{name}.py") for name in ("prepared", "sources", "conversations")]
    code.append(Path(__file__).with_name("tokenization.py"))
    digest = hashlib.sha256()
    for file in code:
        digest.update(file.read_bytes())
    digest.update(how.tokenizer.backend_tokenizer.to_str().encode())  # type: ignore[attr-defined]
    if data is None:
        stat = os.stat(source.path)
        content = f"{os.path.abspath(source.path)} {stat.st_size} {stat.st_mtime_ns}"
    else:
        content = data._fingerprint
    folder = None if source.image_folder is None else os.path.join(source.image_folder, "")
    special = sorted(how.tokenizer.special_tokens_map.items())
    settings = (content, folder, how.template, special, how.image_token_id, how.image_tokens, how.max_length)
    digest.update(repr(settings).encode())
    return digest.hexdigest()[:32]


def _weighted(rows: Dataset, weight: float, seed: int) -> Dataset:
    """Whole rows as often as the weight says, and a random share of them once more for its fraction."""
    whole, fraction = divmod(weight, 1)
    if weight == 1:
        return rows
    order = np.random.default_rng(seed).permutation(len(rows))
    some = np.sort(order[: round(fraction * len(rows))])
    return rows.select(chain(*[range(len(rows))] * int(whole), some.tolist()))


def _expanded(batch: dict[str, list[Any]], image_token_id: int, image_tokens: int) -> dict[str, list[Any]]:
    """Stored columns as the trainer sees them."""
    if "learned" not in batch:
        return batch  # a single column was asked for
    learned = batch.pop("learned")
    pairs = [
        expand(ids, marks, image_token_id, image_tokens)
        for ids, marks in zip(batch["input_ids"], learned, strict=True)
    ]
    return {**batch, "input_ids": [ids for ids, _ in pairs], "labels": [labels for _, labels in pairs]}
