"""Image files that are damaged, or unusual: whatever is drawn, each program must use it or name it."""

import io
import random
import struct
import zlib
from typing import Any

from PIL import Image


ORIENTATION = 0x0112
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
DEEP = (("I;16", "PNG"), ("I;16", "TIFF"), ("I", "TIFF"), ("F", "TIFF"))
COLOURS = (
    ("CMYK", "JPEG"),
    ("CMYK", "TIFF"),
    ("L", "JPEG"),
    ("L", "WEBP"),
    ("1", "PNG"),
    ("1", "TIFF"),
    ("LA", "PNG"),
    ("RGBA", "PNG"),
    ("RGBA", "WEBP"),
    ("RGBA", "TIFF"),
    ("YCbCr", "TIFF"),
    ("LAB", "TIFF"),
)


def damaged_image(chance: random.Random) -> tuple[str, bytes]:
    """A kind of damage, and the content of a file that has it."""
    kind = chance.choice([*KINDS])
    return kind, KINDS[kind](chance)


def encoded(chance: random.Random, form: str, mode: str = "RGB", size: Any = None, **options: Any) -> bytes:
    """Noise in a format of Pillow."""
    width, height = size or (chance.randrange(1, 60), chance.randrange(1, 60))
    pixels = Image.frombytes("RGB", (width, height), chance.randbytes(width * height * 3))
    file = io.BytesIO()
    pixels.convert(mode).save(file, form, **options)
    return file.getvalue()


def png(width: int, height: int, depth: int, colour: int, pixels: bytes = b"") -> bytes:
    """A PNG that says what it is told to say, and holds `pixels`."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def gif(width: int, height: int, rest: bytes) -> bytes:
    return b"GIF89a" + struct.pack("<HH", width, height) + rest


def _any(chance: random.Random) -> bytes:
    return encoded(chance, chance.choice(FORMATS))


def _truncated(chance: random.Random) -> bytes:
    whole = _any(chance)
    return whole[: chance.randrange(len(whole))]


def _without_a_beginning(chance: random.Random) -> bytes:
    return _any(chance)[chance.randrange(1, 20) :]


def _flipped(chance: random.Random) -> bytes:
    content = bytearray(_any(chance))
    for _ in range(chance.randrange(1, 12)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def _bomb(chance: random.Random) -> bytes:
    side = chance.choice([10_001, 13_000, 20_000, 60_000, 2**31 - 1])
    pixels = bytes(side * side // 8) if side < 12_000 else b""
    small = min(side, 65_535)
    files = png(side, side, 1, 0, pixels), b"P4 %d %d " % (side, side) + bytes(100)
    return chance.choice([*files, gif(small, small, b"\x80\x00\x00" + bytes(6) + b"\x2c")])


def _empty(chance: random.Random) -> bytes:
    width, height = chance.choice([(0, 0), (0, 9), (9, 0)])
    bitmap = b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0)
    pixmap = b"P6 %d %d 255 " % (width, height)
    return chance.choice([png(width, height, 8, 2), pixmap, bitmap, gif(width, height, b"\x00\x00\x00\x3b"), b""])


def _narrow(chance: random.Random) -> bytes:
    size = chance.choice([(1, 199), (200, 1), (201, 1), (3, 1200), (65_000, 1), (1, 60_000)])
    return encoded(chance, chance.choice(["PNG", "BMP", "PPM"]), size=size)


def _animated(chance: random.Random) -> bytes:
    frames = [Image.new("RGB", (20, 30), (chance.randrange(256), 9, 9)) for _ in range(chance.randrange(1, 6))]
    return encoded(chance, chance.choice(["GIF", "WEBP", "PNG"]), size=(20, 30), save_all=True, append_images=frames)


def _deep(chance: random.Random) -> bytes:
    if chance.random() < 0.2:  # 16 bits a channel, of which Pillow keeps 8
        return png(3, 2, 16, 2, b"".join(b"\0" + chance.randbytes(18) for _ in range(2)))
    mode, form = chance.choice(DEEP)
    file = io.BytesIO()
    Image.new("L", (9, 7), chance.randrange(256)).convert("I").convert(mode).save(file, form)
    return file.getvalue()


def _colours(chance: random.Random) -> bytes:
    mode, form = chance.choice(COLOURS)
    return encoded(chance, form, mode)


def _palette(chance: random.Random) -> bytes:
    return encoded(chance, chance.choice(["PNG", "GIF"]), "P", transparency=chance.randrange(256))


def _rotated(chance: random.Random) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = chance.randrange(10)
    return encoded(chance, chance.choice(["JPEG", "PNG", "WEBP", "TIFF"]), exif=exif)


def _broken_exif(chance: random.Random) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = chance.randrange(1, 9)
    content = bytearray(exif.tobytes())
    for _ in range(chance.randrange(1, 5)):
        content[chance.randrange(6, len(content))] = chance.randrange(256)
    return encoded(chance, chance.choice(["JPEG", "PNG", "WEBP"]), exif=bytes(content))


def _another_format(chance: random.Random) -> bytes:
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'/>"
    form = chance.choice(["EPS", "ICO", "PCX", "TGA", "PDF", "IM", "SVG"])
    return svg if form == "SVG" else encoded(chance, form, size=(16, 16))


KINDS = {
    "truncated": _truncated,
    "without a beginning": _without_a_beginning,
    "flipped bytes": _flipped,
    "bomb": _bomb,
    "empty": _empty,
    "narrow": _narrow,
    "animated": _animated,
    "more than 8 bits": _deep,
    "colours": _colours,
    "palette": _palette,
    "rotated": _rotated,
    "broken EXIF": _broken_exif,
    "another format": _another_format,
}
