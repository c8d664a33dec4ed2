"""Damaged and unusual images through the paths of training, evaluation, diagnostics and demo.

Each path names an image that it cannot use, or sees the pixels that every other path sees.
"""

import functools
import hashlib
import io
import json
import random
import re
import struct
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any

import datasets
import gradio as gr
from PIL import Image
from transformers import AutoProcessor

from eval.demo.app import _open_upload
from modeling_aligned_llava.diagnostics.hooks.loading import load
from modeling_aligned_llava.diagnostics.images import in_folder
from modeling_aligned_llava.diagnostics.measure.profile import profile_loaded
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.documents import Documents
from tests.faults.campaign import Campaign, Case
from tests.faults.child import in_child
from tests.faults.tiny import tiny
from train.data.collator import ImageTextCollator
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine, read_entries
from train.data.row_images import RowImages
from train.data.sources import read_sources
from train.data.tokenization import Tokenization


CHUNK = 250
CHUNKS = 20
SECONDS = 30  # for one image
PEAK_MIB = 2000  # the largest image allowed has 300 MB as RGB, and processors make copies
ORIENTATION = 0x0112
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM")


def cases(seed: int) -> Iterator[Case]:
    for chunk in range(CHUNKS):
        yield Case(f"images {chunk * CHUNK}-", functools.partial(images_case, seed, chunk * CHUNK, CHUNK))


def damaged_image(seed: int, number: int) -> tuple[str, bytes]:
    """The kind and content of an image file that is damaged, or unusual; another for each number."""
    chance = random.Random(f"image {seed} {number}")
    kind = chance.choice([*KINDS])
    return kind, KINDS[kind](chance)


def _encoded(chance: random.Random, form: str, mode: str = "RGB", size: tuple[int, int] | None = None, **options: Any):
    width, height = size or (chance.randrange(1, 60), chance.randrange(1, 60))
    pixels = Image.frombytes("RGB", (width, height), chance.randbytes(width * height * 3))
    file = io.BytesIO()
    pixels.convert(mode).save(file, form, **options)
    return file.getvalue()


def _any(chance: random.Random) -> bytes:
    return _encoded(chance, chance.choice(FORMATS))


def _truncated(chance: random.Random) -> bytes:
    whole = _any(chance)
    return whole[: chance.randrange(len(whole))]


def _flipped(chance: random.Random) -> bytes:
    content = bytearray(_any(chance))
    for _ in range(chance.randrange(1, 12)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    return bytes(content)


def _png(width: int, height: int, depth: int, colour: int, pixels: bytes = b"") -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(pixels)) + chunk(b"IEND", b"")


def _bomb(chance: random.Random) -> bytes:
    side = chance.choice([10_001, 13_000, 20_000, 60_000, 2**31 - 1])
    pixels = bytes(side * side // 8) if side < 12_000 else b""
    return chance.choice(
        [
            _png(side, side, 1, 0, pixels),
            b"P4 %d %d " % (side, side) + bytes(100),
            b"GIF89a"
            + struct.pack("<HH", min(side, 65_535), min(side, 65_535))
            + b"\x80\x00\x00"
            + bytes(6)
            + b"\x2c",
        ]
    )


def _large(chance: random.Random) -> bytes:
    """Within the limits: it is decoded. Rare, for it takes a second."""
    if chance.random() < 0.95:
        return _encoded(chance, "PNG", "1", (1200, 900))
    return _png(9_990, 9_990, 1, 0, bytes(9_990 * -(-9_990 // 8) + 9_990))


def _empty(chance: random.Random) -> bytes:
    width, height = chance.choice([(0, 0), (0, 9), (9, 0)])
    return chance.choice(
        [
            _png(width, height, 8, 2),
            b"P6 %d %d 255 " % (width, height),
            b"BM" + struct.pack("<IIIIiiHHIIiiII", 54, 0, 54, 40, width, height, 1, 24, 0, 0, 0, 0, 0, 0),
            b"GIF89a" + struct.pack("<HH", width, height) + b"\x00\x00\x00\x3b",
            b"",
        ]
    )


def _narrow(chance: random.Random) -> bytes:
    size = chance.choice([(1, 199), (200, 1), (201, 1), (3, 1200), (65_000, 1), (1, 60_000)])
    return _encoded(chance, chance.choice(["PNG", "BMP", "PPM"]), "RGB", size)


def _animated(chance: random.Random) -> bytes:
    frames = [Image.new("RGB", (20, 30), (chance.randrange(256), 9, 9)) for _ in range(chance.randrange(1, 6))]
    return _encoded(chance, chance.choice(["GIF", "WEBP", "PNG"]), size=(20, 30), save_all=True, append_images=frames)


def _deep(chance: random.Random) -> bytes:
    mode, form = chance.choice([("I;16", "PNG"), ("I;16", "TIFF"), ("I", "TIFF"), ("F", "TIFF"), ("RGB", "PNG")])
    if mode == "RGB":  # 16 bits a channel, of which Pillow keeps 8
        return _png(3, 2, 16, 2, b"".join(b"\0" + chance.randbytes(18) for _ in range(2)))
    file = io.BytesIO()
    Image.new("L", (9, 7), chance.randrange(256)).convert("I").convert(mode).save(file, form)
    return file.getvalue()


def _colours(chance: random.Random) -> bytes:
    mode, form = chance.choice(
        [
            *[("CMYK", "JPEG"), ("CMYK", "TIFF"), ("L", "JPEG"), ("1", "PNG"), ("1", "TIFF"), ("L", "WEBP")],
            *[("LA", "PNG"), ("RGBA", "PNG"), ("RGBA", "WEBP"), ("RGBA", "TIFF"), ("YCbCr", "TIFF"), ("LAB", "TIFF")],
        ]
    )
    return _encoded(chance, form, mode)


def _palette(chance: random.Random) -> bytes:
    form = chance.choice(["PNG", "GIF"])
    return _encoded(chance, form, "P", **chance.choice([{}, {"transparency": chance.randrange(256)}]))


def _rotated(chance: random.Random) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = chance.randrange(10)
    return _encoded(chance, chance.choice(["JPEG", "PNG", "WEBP", "TIFF"]), exif=exif)


def _broken_exif(chance: random.Random) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = chance.randrange(1, 9)
    content = bytearray(exif.tobytes())
    for _ in range(chance.randrange(1, 5)):
        content[chance.randrange(6, len(content))] = chance.randrange(256)
    return _encoded(chance, chance.choice(["JPEG", "PNG", "WEBP"]), exif=bytes(content))


def _other(chance: random.Random) -> bytes:
    form = chance.choice(["EPS", "ICO", "PCX", "TGA", "PDF", "IM", "SVG"])
    return b"<svg xmlns='http://www.w3.org/2000/svg'/>" if form == "SVG" else _encoded(chance, form, size=(16, 16))


KINDS = {
    "truncated": _truncated,
    "without a beginning": lambda chance: _any(chance)[chance.randrange(1, 20) :],
    "another header": lambda chance: chance.randbytes(8) + _any(chance)[8:],
    "noise": lambda chance: chance.randbytes(chance.randrange(500)),
    "flipped bytes": _flipped,
    "bomb": _bomb,
    "large": _large,
    "empty": _empty,
    "narrow": _narrow,
    "animated": _animated,
    "more than 8 bits": _deep,
    "colours": _colours,
    "palette": _palette,
    "rotated": _rotated,
    "broken EXIF": _broken_exif,
    "another format": _other,
}


def images_case(seed: int, first: int, count: int, folder: Path) -> dict[str, Any]:
    """`count` images through every path, in a child.

    Raises:
        AssertionError: with the number of the image.
    """
    tiny()  # before the fork
    measured = in_child(functools.partial(_images, seed, first, count, folder), SECONDS)
    assert measured["peak_mib"] < PEAK_MIB, f"images {first}-{first + count}: {measured['peak_mib']} MiB"
    return measured


def _images(seed: int, first: int, count: int, folder: Path, current: Synchronized) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # of Pillow, about bombs and EXIF
    made = [damaged_image(seed, number) for number in range(first, first + count)]
    (folder / "files").mkdir()
    for number, (_, content) in enumerate(made):
        (folder / "files" / f"{number:04}.png").write_bytes(content)
    trained = _training(folder, count, current)
    rows = datasets.Dataset.from_dict(
        {"image": [{"bytes": content, "path": None} for _, content in made]},
        features=datasets.Features({"image": datasets.Image()}),
    )
    documents = Documents(rows, "task")
    counts: Counter[str] = Counter()
    questions = in_folder(folder / "files", count)
    for number, (kind, _) in enumerate(made):
        current.value = first + number
        where = f"image {first + number} of seed {seed} ({kind})"
        seen = {
            "training": trained[number],
            "evaluation": _opened(lambda: _evaluated(documents, number), f"task document {number}", where),  # noqa: B023
            "diagnostics": _opened(questions[number].open, f"{number:04}.png", where),
            "demo": _uploaded(folder / "files" / f"{number:04}.png", where),
        }
        digests = {path: digest for path, digest in seen.items() if digest is not None}
        assert len(set(digests.values())) <= 1, f"{where}: other pixels in {digests}"
        own = [path for path in seen if path != "evaluation"]
        assert len({seen[path] is None for path in own}) == 1, f"{where}: used by {[*digests]} only"
        stock = kind in (
            "more than 8 bits",
            "flipped bytes",
            "broken EXIF",
        )  # ours refuses, or reads, more than `datasets`
        assert stock or (seen["evaluation"] is None) == (seen["training"] is None), (
            f"{where}: used by {[*digests]} only"
        )
        counts["images"] += 1
        counts["images used" if seen["training"] else "images refused"] += 1
    model, processor = _model()
    profile = profile_loaded("tiny", model, processor, questions)
    assert profile["images"] + len(profile["unreadable"]) == count and profile["images"] == counts["images used"]
    return dict(counts)


def _training(folder: Path, count: int, current: Synchronized) -> list[str | None]:
    """The digest of the pixels of each image that is trained on; the others are quarantined under their file."""
    turns = [{"from": "human", "value": "<image>\nA?"}, {"from": "gpt", "value": "one"}]
    lines = [json.dumps({"image": f"{number:04}.png", "conversations": turns}) for number in range(count)]
    (folder / "files" / "good.png").write_bytes(_encoded(random.Random(0), "PNG"))
    lines += [json.dumps({"image": "good.png", "conversations": turns})] * count
    (folder / "data.jsonl").write_text("\n".join(lines))
    processor = AutoProcessor.from_pretrained(tiny().checkpoint)
    how = Tokenization(processor.tokenizer, str(processor.chat_template), processor.image_token_id, 4, max_length=200)
    sources = read_sources(str(folder / "data.jsonl"), str(folder / "files"))
    data = open_training_data(sources, how, folder / "cache")
    row_images = RowImages(data, Quarantine(folder / "quarantine.jsonl", data.opened, 1.0), seed=0)
    row_images.quarantine.begin(data.bad_rows)
    collate = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, row_images)
    found: list[str | None] = []
    for number in range(count):
        row = data.dataset[number]
        batch = collate([row])
        assert batch["pixel_values"].shape == (1, 3, 28, 28) and batch["pixel_values"].isfinite().all()
        try:
            found.append(_digest(row_images.open(row)[0]))
        except UserError:
            found.append(None)
    (folder / "files" / "good.png").unlink()
    entries = [entry for entry in read_entries(row_images.quarantine.path) if not entry.used]
    assert {entry.row for entry in entries} >= {number for number, digest in enumerate(found) if digest is None}
    assert all(f"{entry.row:04}.png" in entry.detail for entry in entries), entries
    return found


def _evaluated(documents: Documents, number: int) -> Image.Image:
    def visual(document: dict[str, Any]) -> list[Image.Image]:
        return [document["image"].convert("RGB")]

    _, sizes = documents.look(visual, number)
    (image,) = documents.open(visual, number)
    assert sizes == [image.size], f"announced as {sizes}, decoded to {image.size}"
    return image


def _uploaded(path: Path, where: str) -> str | None:
    try:
        found, _ = _open_upload(str(path))
    except gr.Error as error:
        assert re.match("The image (has|cannot)", str(error.message)) and "\n" not in error.message, where
        return None
    return _digest(found.open())


def _opened(open_image: Any, name: str, where: str) -> str | None:
    try:
        image = open_image()
    except UserError as error:
        assert name in str(error) and "\n" not in str(error), f"{where}: {error}"
        return None
    assert image.mode == "RGB", f"{where}: {image.mode}"
    return _digest(image)


def _digest(image: Image.Image) -> str:
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()


@functools.cache
def _model() -> tuple[Any, Any]:
    return load(str(tiny().checkpoint))


CAMPAIGN = Campaign("damaged_images", cases)
