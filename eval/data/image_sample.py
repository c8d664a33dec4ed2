"""The paper's sample of MMBench, POPE and MM-Star, to measure models on.

The paper draws 1,000 samples from the three benchmarks with seed 42 (section 4), without naming the rows.
"""

import random
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet
from PIL import Image

from eval.data.benchmarks import BY_KEY, Benchmark
from eval.data.mirror import split_files
from modeling_aligned_llava.diagnostics.instruments.image_questions import Box, ImageQuestion
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json
from modeling_aligned_llava.loading.images import open_image


SAMPLE = ("mmbench", "pope", "mmstar")  # each has an `image_sample`; their order is part of the draw
SEED = 42


def in_benchmarks(root: Path, limit: int, keys: tuple[str, ...] = SAMPLE) -> list[ImageQuestion]:
    """A sample of the rows of MMBench, POPE and MM-Star (or those of them in `keys`) in a data root.

    Raises:
        UserError: a benchmark's folder is missing or not readable, or a row has no question.
    """
    if not root.is_dir():
        raise UserError(f"--data: there is no folder {root}")
    boxes = read_json(root / "boxes.json") or {}
    rows = [image for key in keys for image in _rows(root, BY_KEY[key], boxes.get(BY_KEY[key].folder, {}))]
    return random.Random(SEED).sample(rows, min(limit, len(rows)))


def _rows(root: Path, benchmark: Benchmark, boxes: dict[str, list[Box]]) -> list[ImageQuestion]:
    sample = benchmark.image_sample
    assert sample is not None, "no benchmark of SAMPLE"
    key = sample.id_column
    questions = []
    for file in split_files(root, benchmark):
        try:
            reader = pyarrow.parquet.ParquetFile(file)
            columns = [key, "question"]
            if lacking := sorted(set(columns) - set(reader.schema_arrow.names)):
                raise UserError(f"--data: {file} has no column {', '.join(lacking)}")
            rows = reader.read(columns).to_pylist()
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"--data: {file} is not readable parquet ({error})") from None
        for number, row in enumerate(rows):
            if not isinstance(row["question"], str):
                raise UserError(f"--data: {file}, row {number} has no question")
        questions += [
            ImageQuestion(
                f"{benchmark.key}/{row[key]}",
                partial(_decode, file, number),
                row["question"] + sample.suffix,
                tuple((left, top, right, bottom) for left, top, right, bottom in boxes.get(str(row[key]), ())),
            )
            for number, row in enumerate(rows)
        ]
    return questions


def _decode(file: Path, number: int) -> Image.Image:
    name = f"{file}, row {number}"
    content = (row_at(file, number, ["image"])["image"] or {}).get("bytes")
    if content is None:
        raise UserError(f"{name} has no image")
    return open_image(content, name)


def row_at(file: Path, number: int, columns: list[str]) -> dict[str, Any]:
    """Some columns of row `number` of a parquet file, reading only its row group.

    Raises:
        UserError: there is no such row.
    """
    reader = pyarrow.parquet.ParquetFile(file)
    place = number
    for group in range(reader.num_row_groups):
        rows = reader.metadata.row_group(group).num_rows
        if place < rows:
            return reader.read_row_group(group, columns).slice(place, 1).to_pylist()[0]
        place -= rows
    raise UserError(f"{file} has no row {number}")
