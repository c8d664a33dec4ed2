"""A file that is not an image, or claims too many pixels, is refused from its header in one line that names it."""

import struct
import zlib
from pathlib import Path

import pytest

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import open_image


def png_header(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds no pixels."""
    chunks = (b"IHDR" + struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0), b"IDAT")
    written = (struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) for chunk in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(written)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            b"Dear reader, I am not an image.",
            "The image cannot be read as an image: its format is none of JPEG, PNG",
        ),
        (png_header(11_000, 10_000), "The image has 11000 x 10000 pixels, more than 100000000"),
        (png_header(20_000, 20_000), "The image has far more than 100000000 pixels"),
    ],
    ids=["text", "110 megapixels", "400 megapixels"],
)
def test_refused_by_the_name_it_was_given(content, message, tmp_path):
    file: Path = tmp_path / "upload.png"
    file.write_bytes(content)
    with pytest.raises(UserError) as error:
        open_image(file, "The image")
    assert str(error.value).startswith(message)
    assert str(tmp_path) not in str(error.value) and "\n" not in str(error.value)
