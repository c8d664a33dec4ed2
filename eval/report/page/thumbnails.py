"""Images inside the page as data URIs: thumbnails of the benchmarks' images."""

from pathlib import Path

import pyarrow.parquet
from PIL import Image

from eval.data.benchmarks import Benchmark
from eval.data.image_sample import row_at
from eval.data.mirror import split_files
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import data_uri, open_image


SIDE = 320  # maximum width and height in pixels


def thumbnail(image: Image.Image) -> str:
    """A data URI of a copy with at most `SIDE` pixels on each side."""
    small = image.copy()
    small.thumbnail((SIDE, SIDE))
    return data_uri(small, "WEBP", quality=80)


def document_image(root: Path, benchmark: Benchmark, document: int, question: str) -> Image.Image | None:
    """The image of a document, counted as the harness does; None for a text-only one.

    Raises:
        UserError: there is no such row, its question is not `question`, or its image cannot be read.
    """
    for file in split_files(root, benchmark):
        rows = pyarrow.parquet.read_metadata(file).num_rows
        if document < rows:
            row = row_at(file, document, ["question", "image"])
            if str(row["question"]).strip() not in question:
                raise UserError(f"{benchmark.key}: the data is no longer what was evaluated")
            return row["image"] and open_image(row["image"]["bytes"], f"{benchmark.key} row {document}")
        document -= rows
    raise UserError(f"{benchmark.key}: the data is no longer what was evaluated")
