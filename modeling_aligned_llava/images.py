"""Opens image files from disk, with a limit on their size: what training and assembly read."""

from pathlib import Path

from PIL import Image, UnidentifiedImageError

from .errors import UserError


MAX_PIXELS = 100_000_000  # a file of a few kB can claim to be gigapixels


def open_image(path: str | Path) -> Image.Image:
    """Decode an image file to RGB.

    Raises:
        UserError: the file is no image, is damaged, or is larger than `MAX_PIXELS`.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"{path} has {image.width} x {image.height} pixels, more than {MAX_PIXELS}")
            return image.convert("RGB")
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise UserError(f"{path} cannot be read as an image: {error}") from error
