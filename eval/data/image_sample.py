"""The paper's sample of MMBench, POPE and MM-Star, to measure models on.

The paper draws 1,000 samples from the three benchmarks with seed 42 (section 4), without naming the rows.
"""

import random
from functools import partial
from pathlib import Path

import pyarrow.parquet
from PIL import Image

from eval.data.benchmarks import BY_KEY, Benchmark
from eval.data.mirror import split_files
from modeling_aligned_llava.diagnostics.instruments.image_questions import Box, ImageQuestion
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json
from modeling_aligned_llava.loading.images import open_image


SAMPLE = ("mmbench", "pope", "mmstar")  # each has a `image_id`; their order is part of the draw
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
    key, questions = benchmark.image_id, []
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
            name, question = f"{benchmark.key}/{row[key]}", row["question"] + benchmark.question_suffix
            corners = tuple((left, top, right, bottom) for left, top, right, bottom in boxes.get(str(row[key]), ()))
            questions.append(ImageQuestion(name, partial(_decode, file, number), question, corners))
    return questions


def _decode(file: Path, number: int) -> Image.Image:
    """The image of row `number`, reading only its row group."""
    reader, name, place = pyarrow.parquet.ParquetFile(file), f"{file}, row {number}", number
    for group in range(reader.num_row_groups):
        rows = reader.metadata.row_group(group).num_rows
        if place < rows:
            break
        place -= rows
    content = (reader.read_row_group(group, ["image"])["image"][place].as_py() or {}).get("bytes")
    if content is None:
        raise UserError(f"{name} has no image")
    return open_image(content, name)
