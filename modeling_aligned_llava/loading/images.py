"""Safe image decoding for training and assembly: known formats, a size limit, and conversions are reported."""

import io
from pathlib import Path
from typing import BinaryIO

from PIL import Image, UnidentifiedImageError

from modeling_aligned_llava.errors import UserError


MAX_PIXELS = 100_000_000  # a file of a few kB can claim to be gigapixels
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")  # not EPS and the like, which can run programs
Image.init()  # registers all of them
_AS_THEY_ARE = ("RGB", "L", "1")


def open_image(source: str | Path | bytes | BinaryIO, name: str | None = None) -> Image.Image:
    """Decode an image to RGB; arguments and errors are those of `decode_image`."""
    return decode_image(source, name)[0]


def decode_image(source: str | Path | bytes | BinaryIO, name: str | None = None) -> tuple[Image.Image, str | None]:
    """Decode an image to RGB and report what that changed.

    Args:
        source: a path, an open file, or the bytes of one.
        name: its name in messages; default: the path.

    Returns:
        The image, and what was converted (`CMYK`, `palette`, `transparent`, `animated`) or None.

    Raises:
        UserError: the source is not an image, is damaged, exceeds `MAX_PIXELS`, or has more than 8 bits per channel.
    """
    name = name or ("image" if isinstance(source, bytes) else str(source))
    file = io.BytesIO(source) if isinstance(source, bytes) else source
    try:
        with Image.open(file, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise UserError(f"{name} has {image.width} x {image.height} pixels, more than {MAX_PIXELS}")
            if image.mode.startswith(("I", "F")):
                raise UserError(f"{name} has pixels of more than 8 bits (mode {image.mode}); convert it first")
            return image.convert("RGB"), _changed(image)
    except UserError:
        raise
    except Image.DecompressionBombError as error:  # Pillow's own, higher limit, which does not give the size
        raise UserError(f"{name} has far more than {MAX_PIXELS} pixels") from error
    except UnidentifiedImageError as error:
        raise UserError(f"{name} cannot be read as an image: its format is none of {', '.join(FORMATS)}") from error
    except Exception as error:  # decoders raise all kinds of errors on damaged files
        raise UserError(f"{name} cannot be read as an image: {' '.join(str(error).split())}") from error


def _changed(image: Image.Image) -> str | None:
    frames = getattr(image, "n_frames", 1)
    if frames > 1 and image.format != "MPO":  # further frames of an MPO are previews
        return f"animated: the first of {frames} frames"
    if image.mode in _AS_THEY_ARE:
        return None
    kinds = {"P": "palette", "PA": "palette", "RGBA": "transparent", "LA": "transparent"}
    return f"{kinds.get(image.mode, image.mode)}: converted to RGB"
