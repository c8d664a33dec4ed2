"""Sources of conversations: JSON with an image folder, parquet or Hub datasets with embedded images, and mixtures.

Each becomes a memory-mapped table of raw rows.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from datasets import Dataset, Features, Image, Sequence, Value, load_dataset
from datasets.exceptions import DatasetGenerationError

from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.loading.dataset_locks import repair_dataset_locks
from modeling_aligned_llava.loading.files import disk_errors_named
from modeling_aligned_llava.loading.fingerprint import hash_code, hash_text
from train.data.row import DESCRIBING, READ, EmbeddedImage


repair_dataset_locks()
IMAGES = ("image", "images")
_SPACE = re.compile(r"[ \t\n\r]*")
_OTHER_SPLIT = re.compile(r"(^|[-_./])(test|validation|valid|val|dev|eval)[-_./]")
_JSON = Features({"json": Value("binary")})


@dataclass(frozen=True)
class Source:
    """One entry of a mixture.

    Args:
        path: a `.json`, `.jsonl` or `.parquet` file, a folder of parquet files, or a Hub id.
        image_folder: root of the image files that rows name; None if images are embedded.
        weight: how often each row is used per epoch; below 1, a fixed random share of the rows.
        config: the configuration of a Hub dataset that has several.
        split: the split of a Hub dataset; None: `train`.
    """

    path: str
    image_folder: Path | None
    weight: float = 1.0
    config: str | None = None
    split: str | None = None

    @property
    def is_text(self) -> bool:
        """Whether the source is JSON rather than a table."""
        return self.path.endswith((".json", ".jsonl"))


def read_sources(data_path: str, image_folder: str | None) -> list[Source]:
    """The sources that `data_path` names: itself, or the entries of a mixture in a `.yaml` file.

    Raises:
        UserError: there is no such file, or the mixture is malformed.
    """
    folder = Path(image_folder) if image_folder else None
    if not data_path.endswith((".yaml", ".yml")):
        return [_checked(Source(data_path, folder))]
    mixture = Path(data_path)
    if not mixture.is_file():
        raise UserError(f"data_path: there is no file {mixture}")
    wanted = f"{mixture} must be a list of {{path, image_folder, weight, config, split}}"
    with errors_named(wanted, yaml.YAMLError, TypeError, ValueError):
        entries = yaml.safe_load(mixture.read_text(encoding="utf-8"))
        sources = [_entry(entry, folder) for entry in entries]
    if not sources:
        raise UserError(f"{mixture} lists no data")
    return [_checked(source) for source in sources]


def _entry(entry: dict[str, Any], folder: Path | None) -> Source:
    source = Source(**{"image_folder": folder, **entry})
    weight = float(source.weight)
    if not 0 < weight < 1000:
        raise ValueError(f"weight {weight} of {source.path} is not between 0 and 1000")
    return replace(
        source, weight=weight, image_folder=Path(source.image_folder) if source.image_folder is not None else None
    )


def _checked(source: Source) -> Source:
    path = Path(source.path)
    if source.is_text or source.path.endswith(".parquet"):
        if not path.is_file():
            raise UserError(f"data_path: there is no file {path}")
    elif path.is_dir():
        files = [file.relative_to(path).as_posix() for file in path.glob("**/*.parquet")]
        if not files:
            raise UserError(f"data_path: there is no .parquet file in {path}")
        other = sorted(filter(_OTHER_SPLIT.search, files))
        if 0 < len(other) < len(files):
            raise UserError(f"data_path: {path} has other splits ({other[0]}): list the files to train on in a .yaml")
    elif not path.exists() and source.path.count("/") != 1:
        raise UserError(f"data_path: there is no file {path}, and it is no Hub id")
    if path.exists() and (source.config or source.split):
        raise UserError(f"data_path: config and split are those of a Hub dataset; {path} is read whole")
    return source


def _table(source: Source, cache: str) -> Dataset:
    """The rows of a parquet or Hub source; images stay undecoded bytes.

    Raises:
        UserError: it cannot be read.
    """
    path = Path(source.path)
    files = [str(path)] if path.is_file() else sorted(map(str, path.glob("**/*.parquet")))
    try:
        if files:
            data = load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
        else:
            data = load_dataset(source.path, source.config, split=source.split or "train", cache_dir=cache)
    except Exception as error:  # the Hub, the parquet reader and datasets' own builders raise anything
        said = " ".join(str(error.__cause__ or error).split())
        choose = "choose one with `config` in a .yaml; " if said.startswith("Config name is missing") else ""
        raise UserError(f"data_path: {source.path} cannot be read: {choose}{said}") from error
    for name, feature in (data.features or {}).items():
        if isinstance(feature, Image):
            data = data.cast_column(name, Image(decode=False))
        elif isinstance(getattr(feature, "feature", None), Image):
            data = data.cast_column(name, Sequence(Image(decode=False)))
    return data


def raw_table(source: Source, cache: str) -> Dataset:
    """The raw rows of a source: columns that may change their meaning or, for JSON, a column `json` of texts.

    Raises:
        UserError: it cannot be read.
    """
    if not source.is_text:
        data = _table(source, cache)
        return data.select_columns([name for name in data.column_names if name not in DESCRIBING])
    try:
        with disk_errors_named(cache):
            return Dataset.from_generator(
                _json_texts,
                gen_kwargs={"path": Path(source.path)},
                features=_JSON,
                cache_dir=cache,
                fingerprint=_file_fingerprint(Path(source.path)),
            )
    except DatasetGenerationError as error:
        if isinstance(error.__cause__, UserError):
            raise error.__cause__ from None
        raise


def _file_fingerprint(path: Path) -> str:
    """Identify the content of a file and this code, which splits it into rows."""
    stat = path.stat()
    return hash_text(f"{hash_code(__name__)} {os.path.abspath(path)} {stat.st_size} {stat.st_mtime_ns}")[:32]


def parsed_rows(batch: pa.Table, first_row: int) -> list[Any]:
    """Rows of a `raw_table` as parsed JSON, or the ValueError of a damaged line; embedded images as `EmbeddedImage`s.

    Args:
        batch: consecutive rows.
        first_row: number of the first row.
    """
    if batch.column_names == ["json"]:
        return [_parsed(text) for text in batch["json"].to_pylist()]
    columns = {name: _cells(name, batch[name], first_row) for name in batch.column_names}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        return ValueError(str(error))


def _json_texts(path: Path) -> Iterator[dict[str, bytes]]:
    empty = True
    for text in _json_lines(path) if path.suffix == ".jsonl" else _json_array(path):
        empty = False
        yield {"json": text}
    if empty:
        raise UserError(f"{path} has no rows")


def _json_lines(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        for line in file:
            if line.strip():
                yield line


def _json_array(path: Path) -> Iterator[bytes]:
    """The texts of the elements of a JSON list, of which one at a time is parsed."""
    decode = json.JSONDecoder().raw_decode
    with errors_named(f"{path} is not JSON", ValueError, RecursionError):
        text = path.read_text(encoding="utf-8-sig")
        at = _after_space(text, 0)
        if text[at : at + 1] != "[":
            raise UserError(f"{path} must be a JSON list of conversations")
        start = at = _after_space(text, at + 1)
        while text[at : at + 1] != "]":
            if at > start:
                if text[at : at + 1] != ",":
                    raise ValueError(f"a comma or the end of the list is missing before {text[at : at + 40]!r}")
                at = _after_space(text, at + 1)
            _, end = decode(text, at)
            yield text[at:end].encode()
            at = _after_space(text, end)


def _after_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return space.end() if space else at


def _cells(name: str, column: pa.ChunkedArray, first_row: int) -> list[Any]:
    """The values of a column; of one that is not read only whether there is one, because it may hold videos."""
    if name in IMAGES:
        return _image_names(column, first_row)
    if name in READ:
        return column.to_pylist()
    several = pa.types.is_list(column.type) or pa.types.is_large_list(column.type) or pa.types.is_string(column.type)
    return [True if cell.is_valid and (not several or len(cell.as_py())) else None for cell in column]


def _image_names(column: pa.ChunkedArray, first_row: int) -> list[Any]:
    """For each row, its file names or the names of its embedded images; no image is read."""
    several = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
    if pa.types.is_struct(column.type.value_type if several else column.type):
        cells = [(value.values if several else [value]) if value.is_valid else [] for value in column]
        return [
            [_image_name(cell, f"{EmbeddedImage.PREFIX}{row}:{i}") for i, cell in enumerate(of_row)]
            for row, of_row in enumerate(cells, start=first_row)
        ]
    return column.to_pylist()


def _image_name(cell: pa.StructScalar, embedded: str) -> str | None:
    if cell.is_valid and cell["bytes"].is_valid:
        name = EmbeddedImage(embedded)
        name.size = cell["bytes"].as_buffer().size
        return name
    return cell["path"].as_py() if cell.is_valid else None
