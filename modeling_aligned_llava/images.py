"""Opens image files from disk, with a limit on their size: what training and assembly read."""

from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from .errors import UserError


MAX_PIXELS = 100_000_000  # a file of a few kB can claim to be gigapixels


def open_image(path: str | Path | BinaryIO, name: str | None = None) -> Image.Image:
    """Decode an image file, or an open one, to RGB; `name` is what errors call it in place of its path.

    Raises:
        UserError: the file is no image, is damaged, or is larger than `MAX_PIXELS`.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"{name or path} has {image.width} x {image.height} pixels, more than {MAX_PIXELS}")
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{name or path} cannot be read as an image: {error}") from error
