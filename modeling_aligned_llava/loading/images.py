"""Safe image decoding: known formats, limits of size and shape.

Images are turned upright as EXIF says. `datasets` does the same when a benchmark is evaluated, so that training,
evaluation and diagnostics see the same pixels of a file.
"""

import base64
import io
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import BinaryIO

from PIL import Image, ImageFile, ImageOps, UnidentifiedImageError

from modeling_aligned_llava.errors import UserError, errors_named


MAX_PIXELS = 100_000_000  # a file of a few kB can claim to be gigapixels
MAX_RATIO = 200  # of the sides, as in Qwen2-VL: a processor that fixes the shorter side makes gigapixels of a line
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # not EPS and the like, which can run programs
Image.init()  # registers all of them
_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)  # orientations in EXIF that swap width and height
_DECODING = Lock()


def open_image(source: str | Path | bytes | BinaryIO, name: str | None = None) -> Image.Image:
    """Decode an image to RGB: the first frame, upright; as it is stored if its EXIF cannot be read.

    Args:
        source: a path, an open file, or the bytes of one.
        name: its name in messages; default: the path.

    Raises:
        UserError: the source is not an image, is damaged, exceeds `MAX_PIXELS` or `MAX_RATIO`, or has more than 8 bits
            per channel.
    """
    name = name or ("image" if isinstance(source, bytes) else str(source))
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    with _strict_pillow(), _opened(file, name) as image:
        image.load()
        with suppress(Exception):  # as of any other decoder
            ImageOps.exif_transpose(image, in_place=True)
        return image.convert("RGB")


def read_size(source: str | Path | bytes, name: str) -> tuple[int, int]:
    """Width and height of an image once it is turned upright, from the header of its file.

    Raises:
        UserError: it is not an image, exceeds `MAX_PIXELS` or `MAX_RATIO`, or has more than 8 bits per channel.
    """
    with _opened(io.BytesIO(source) if isinstance(source, bytes) else source, name) as header:
        return upright_size(header)


@contextmanager
def _opened(file: str | Path | BinaryIO, name: str) -> Iterator[Image.Image]:
    """An image whose size is allowed; whatever goes wrong with it in the block is one line.

    Raises:
        UserError: it is not an image, is damaged, or exceeds a limit.
    """
    unreadable = f"{name} cannot be read as an image"
    with errors_named(unreadable, Exception):  # decoders raise all kinds of errors on damaged files
        try:
            with Image.open(file, formats=FORMATS) as image:
                check_header(image, name)
                yield image
        except Image.DecompressionBombError as error:  # Pillow's own, higher limit, which does not give the size
            raise UserError(f"{name} has far more than {MAX_PIXELS} pixels") from error
        except UnidentifiedImageError as error:
            raise UserError(f"{unreadable}: its format is none of {', '.join(FORMATS)}") from error


@contextmanager
def _strict_pillow() -> Iterator[None]:
    """Pillow refuses truncated files and wrong checksums: importing lmms-eval turns that off in the whole process."""
    with _DECODING:
        lenient = ImageFile.LOAD_TRUNCATED_IMAGES
        ImageFile.LOAD_TRUNCATED_IMAGES = False
        try:
            yield
        finally:
            ImageFile.LOAD_TRUNCATED_IMAGES = lenient


def check_header(image: Image.Image, name: str) -> None:
    """Check an image before it is decoded.

    Raises:
        UserError: it exceeds `MAX_PIXELS` or `MAX_RATIO`, or has more than 8 bits per channel, of which Pillow
            makes white.
    """
    width, height = size = image.size
    if image.mode.startswith(("I", "F")):
        raise UserError(f"{name} has pixels of more than 8 bits (mode {image.mode}); convert it first")
    if width * height > MAX_PIXELS:
        raise UserError(f"{name} has {width} x {height} pixels, more than {MAX_PIXELS}")
    if max(size) > MAX_RATIO * min(size):
        raise UserError(f"{name} has {width} x {height} pixels: one side is more than {MAX_RATIO} times the other")


def upright_size(header: Image.Image) -> tuple[int, int]:
    """The size that an opened image file will have once it is decoded and turned upright."""
    # Pillow turns a TIFF itself.
    sideways = header.format != "TIFF" and header.getexif().get(_ORIENTATION) in _SIDEWAYS
    return (header.height, header.width) if sideways else header.size


def data_uri(image: Image.Image, form: str, **options: int) -> str:
    """An image as a data URI; `options` are those of `Image.save`."""
    file = io.BytesIO()
    image.save(file, form, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"
