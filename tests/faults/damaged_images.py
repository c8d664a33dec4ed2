"""Image files that are damaged, or unusual: whatever is drawn, each program must use it or name it."""

import io
import random
import struct
import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

from PIL import Image


FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
WITH_EXIF = ("JPEG", "PNG", "WEBP", "TIFF")
OTHER_FORMATS = ("EPS", "ICO", "PCX", "TGA", "PDF", "IM")
COLOURS = {
    "JPEG": ("CMYK", "L"),
    "PNG": ("1", "LA", "RGBA", "P"),
    "GIF": ("P",),
    "WEBP": ("L", "RGBA"),
    "TIFF": ("1", "CMYK", "RGBA", "YCbCr", "LAB"),
}
DEEP = (("I;16", "PNG"), ("I;16", "TIFF"), ("I", "TIFF"), ("F", "TIFF"))
NARROW = ((1, 199), (200, 1), (201, 1), (3, 1200), (65_000, 1), (1, 60_000))
BOMBS = (10_001, 13_000, 20_000, 60_000, 2**31 - 1)  # sides
EMPTY = ((0, 0), (0, 9), (9, 0))


def damaged_images(rng: random.Random, count: int) -> list[tuple[str, bytes]]:
    """Kinds and contents, about half of them whole but unusual."""
    unusual = [*unusual_images(rng)]
    return [rng.choice(unusual) if rng.random() < 0.6 else damaged_image(rng) for _ in range(count)]


def damaged_image(rng: random.Random) -> tuple[str, bytes]:
    content = encoded(rng, rng.choice(FORMATS))
    kind = rng.choice(["truncated", "without a beginning", "flipped bytes"])
    if kind == "truncated":
        return kind, content[: rng.randrange(len(content))]
    if kind == "without a beginning":
        return kind, content[rng.randrange(1, 20) :]
    return kind, flipped(rng, content, 0)


def unusual_images(rng: random.Random) -> Iterator[tuple[str, bytes]]:
    for form, modes in COLOURS.items():
        for mode in modes:
            yield "colours", encoded(rng, form, mode)
    for form in ("PNG", "GIF"):
        yield "transparent", encoded(rng, form, "P", transparency=rng.randrange(256))
    for form in ("GIF", "WEBP", "PNG"):
        frames = [Image.new("RGB", (20, 30), (rng.randrange(256), 9, 9)) for _ in range(3)]
        yield "animated", encoded(rng, form, size=(20, 30), save_all=True, append_images=frames)
    for form, orientation in product(WITH_EXIF, range(10)):
        exif = Image.Exif()
        exif[0x0112] = orientation
        yield "rotated", encoded(rng, form, exif=exif)
        if form != "TIFF":
            yield "broken EXIF", encoded(rng, form, exif=flipped(rng, exif.tobytes(), 6))
    for form, size in product(("PNG", "BMP", "PPM"), NARROW):
        yield "narrow", encoded(rng, form, size=size)
    for form in OTHER_FORMATS:
        yield "another format", encoded(rng, form, size=(16, 16))
    yield "another format", b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    for deep, form in DEEP:
        file = io.BytesIO()
        Image.new("L", (9, 7), rng.randrange(256)).convert("I").convert(deep).save(file, form)
        yield "more than 8 bits", file.getvalue()
    yield "more than 8 bits", png(3, 2, 16, 2, b"".join(b"\0" + rng.randbytes(18) for _ in range(2)))
    for side in BOMBS:
        yield "bomb", png(side, side, 1, 0, bytes(side * side // 8) if side < 12_000 else b"")
        yield "bomb", b"P4 %d %d " % (side, side) + bytes(100)
        yield "bomb", gif(min(side, 65_535), min(side, 65_535), b"\x80\x00\x00" + bytes(6) + b"\x2c")
    for width, height in EMPTY:
        yield "empty", png(width, height, 8, 2)
        yield "empty", b"P6 %d %d 255 " % (width, height)
        yield "empty", b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
        yield "empty", gif(width, height, b"\x00\x00\x00\x3b")
    yield "empty", b""


def encoded(rng: random.Random, form: str, mode: str = "RGB", size: Any = None, **options: Any) -> bytes:
    """Noise in a format of Pillow."""
    width, height = size or (rng.randrange(1, 60), rng.randrange(1, 60))
    pixels = Image.frombytes("RGB", (width, height), rng.randbytes(width * height * 3))
    file = io.BytesIO()
    pixels.convert(mode).save(file, form, **options)
    return file.getvalue()


def flipped(rng: random.Random, content: bytes, start: int) -> bytes:
    """A few bytes from `start` on are others."""
    changed = bytearray(content)
    for _ in range(rng.randrange(1, 12)):
        changed[rng.randrange(start, len(changed))] = rng.randrange(256)
    return bytes(changed)


def png(width: int, height: int, depth: int, colour: int, pixels: bytes = b"") -> bytes:
    """A PNG that says what it is told to say, and holds `pixels`."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def gif(width: int, height: int, rest: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + rest
