"""What cannot be trained on: damaged rows and images are named, replaced and limited, and never crash a run."""

import io
import json
import random

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.images import decode_image
from tests.modeling_aligned_llava.loading.test_images import png_header
from tests.one_line import one_line
from tests.train.data.rows import tokenization
from train.data.collator import ImageTextCollator
from train.data.prepared import open_training_data
from train.data.quarantine import Entry, Quarantine, read_entries
from train.data.row_images import RowImages
from train.data.sources import read_sources


def encoded(kind="JPEG", mode="RGB", size=(24, 20), seed=0, **options) -> bytes:
    noise = random.Random(seed).randbytes(size[0] * size[1] * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", size, noise).convert(mode).save(file, kind, **options)
    return file.getvalue()


ANIMATED = {"save_all": True, "append_images": [Image.new("RGB", (24, 20))]}
# Converted images are used, and named all the same.
CONVERTED = {
    "CMYK: converted to RGB": encoded("JPEG", "CMYK"),
    "palette: converted to RGB": encoded("PNG", "P"),
    "transparent: converted to RGB": encoded("PNG", "RGBA"),
    "animated: the first of 2 frames": encoded("GIF", "RGB", **ANIMATED),
}
DAMAGED = {
    "nothing": b"",
    "text": b"<html>404 Not Found</html>",
    "truncated JPEG": encoded("JPEG")[:-200],
    "truncated PNG": encoded("PNG")[:-200],
    "truncated WebP": encoded("WEBP")[:-200],
    "no pixels": encoded("PNG")[:33],
    "gigantic": png_header(60_000, 60_000),
    "16 bits": encoded("TIFF", "I"),
    "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
}


def fuzzed_image(number: int) -> bytes:
    """A damaged image file, another for each number."""
    rng = random.Random(number)
    kind = rng.choice(["JPEG", "PNG", "WEBP", "BMP", "PPM", "GIF"])
    whole = encoded(kind, seed=number, **({"progressive": True} if kind == "JPEG" and number % 2 else {}))
    damage = number % 5
    if damage == 0:  # cut anywhere
        return whole[: rng.randrange(int(len(whole) * 0.9))]
    if damage == 1:  # a lost beginning
        return whole[rng.randrange(8, len(whole)) :]
    if damage == 2:
        return rng.randbytes(rng.randrange(400))
    if damage == 3:  # the header's own bytes
        return rng.randbytes(16) + whole[16:]
    broken = bytearray(encoded("PNG", seed=number))  # PNG carries a checksum of its pixels
    broken[rng.randrange(60, len(broken) - 16)] ^= 1 << rng.randrange(8)
    return bytes(broken)


GOOD = {"from": "human", "value": "<image>\nA?"}, {"from": "gpt", "value": "one"}
SCRAPS = [None, 3, 2.5, True, "", "x", [], {}, [None], {"a": []}, [[]], "\ud800", "../red.png", "/etc/passwd", "\0"]
BAD_ANSWERS = ["", " ", "\n\t", "\ud800", "<|im_end|>", "w" * 999]
BROKEN_TURNS = [
    lambda turns, rng: turns[:-1],
    lambda turns, rng: turns[1:],
    lambda turns, rng: turns * 2 + turns[:1],
    lambda turns, rng: [turns[0], *turns],
    lambda turns, rng: [turns[0], {**turns[1], "value": rng.choice(BAD_ANSWERS)}],
    lambda turns, rng: [turns[0], {**turns[1], "value": rng.choice([None, 3, [], {}])}],
    lambda turns, rng: [{**turns[0], "from": rng.choice([None, 3, [], "user", "", "gpt"])}, turns[1]],
    lambda turns, rng: [turns[0], {"from": "gpt"}],
    lambda turns, rng: [turns[0], rng.choice(SCRAPS)],
    lambda turns, rng: rng.choice(SCRAPS),
]  # fmt: skip


def fuzzed_row(number: int) -> str:
    """A line of damaged JSON, or of JSON that is no usable row."""
    rng = random.Random(number)
    row = {"id": str(number), "image": "red.png", "conversations": [dict(turn) for turn in GOOD]}
    damage = number % 6
    if damage == 0:
        text = json.dumps(row)
        return text[: rng.randrange(1, len(text) - 1)]
    if damage == 1:
        row["image"] = rng.choice(
            [3, "", "gone.png", "..", ".", "../red.png", "/red.png", ["red.png", "x"], {}, "\0", "a" * 300]
        )
    elif damage == 2:
        del row["conversations"]
    elif damage == 3:
        return json.dumps(rng.choice([None, 3, "text", [], [row], True]))
    else:
        row["conversations"] = rng.choice(BROKEN_TURNS)(row["conversations"], rng)
    return json.dumps(row)


@pytest.fixture
def open_data(processor, tmp_path):
    """`open_data(lines)` -> the training data of these lines of JSON."""

    def make(lines, max_length=200):
        (tmp_path / "red.png").write_bytes(encoded("PNG"))
        (tmp_path / "data.jsonl").write_text("\n".join(lines) + "\n")
        sources = read_sources(f"{tmp_path}/data.jsonl", str(tmp_path))
        return open_training_data(sources, tokenization(processor, max_length), tmp_path / "cache")

    return make


@pytest.fixture
def with_images(open_data, tmp_path):
    """`with_images(contents)` -> the training data of one row for each image, and its `RowImages`."""

    def make(contents, limit=1.0, seed=42):
        for i, content in enumerate(contents):
            (tmp_path / f"{i}.img").write_bytes(content)
        lines = [json.dumps({"image": f"{i}.img", "conversations": GOOD}) for i in range(len(contents))]
        data = open_data(lines)
        quarantine = Quarantine(tmp_path / "quarantine.jsonl", data.opened, limit)
        quarantine.begin(data.bad_rows)
        return data, RowImages(data, quarantine, seed)

    return make


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_image_is_named(name, tmp_path):
    (tmp_path / "bad.img").write_bytes(DAMAGED[name])
    with one_line(r"bad\.img"):
        decode_image(tmp_path / "bad.img")


def test_converted_images_are_used_and_named(with_images, processor):
    data, row_images = with_images([*CONVERTED.values(), encoded()])
    rows, images = row_images(list(data.dataset))
    assert [row["row"] for row in rows] == [0, 1, 2, 3, 4] and {image.mode for image in images} == {"RGB"}
    assert processor.image_processor(images=images, return_tensors="pt")["pixel_values"].shape == (5, 3, 28, 28)
    entries = read_entries(row_images.quarantine.path)
    assert [(entry.row, entry.reason, entry.used) for entry in entries] == [
        (row, reason, True) for row, reason in enumerate(CONVERTED)
    ]
    row_images.quarantine.check()  # they do not count
    row_images(list(data.dataset))
    assert len(read_entries(row_images.quarantine.path)) == 4  # and are named once


def test_a_replacement_depends_only_on_seed_epoch_and_row(with_images):
    contents = [encoded(seed=i) if i % 2 else b"damaged" for i in range(40)]

    def chosen(rows, seed=42, epoch=0):
        data, row_images = with_images(contents, seed=seed)
        row_images.epoch.fill_(epoch)
        return {row: row_images([data.dataset[row]])[0][0]["row"] for row in rows}

    straight = chosen(range(40))
    assert all(new % 2 and (new == row or row % 2 == 0) for row, new in straight.items())
    assert len({new for row, new in straight.items() if row % 2 == 0}) > 5
    assert chosen(range(39, -1, -1)) == straight
    assert chosen(range(40), epoch=1) != straight and chosen(range(40), seed=43) != straight


def test_workers_replace_alike_and_see_the_epoch(with_images, processor):
    data, row_images = with_images([encoded(seed=i) if i % 3 else b"damaged" for i in range(12)])
    collate = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, row_images)

    def batches(workers):
        loader = DataLoader(data.dataset, batch_size=4, collate_fn=collate, num_workers=workers)
        return [batch["pixel_values"] for batch in loader]

    for epoch in (0, 1):
        row_images.epoch.fill_(epoch)
        serial, parallel = batches(0), batches(2)
        assert all(torch.equal(a, b) for a, b in zip(serial, parallel, strict=True))
    assert {entry.row for entry in read_entries(row_images.quarantine.path)} == {0, 3, 6, 9}


def test_more_than_the_limit_stops_with_the_reasons(with_images):
    data, row_images = with_images([b"damaged", b"damaged", *[encoded()] * 18], limit=0.05)
    rows = list(data.dataset)
    row_images(rows[:1])
    with pytest.raises(UserError) as error:
        row_images(rows[1:])
    assert str(error.value) == (
        "2 of 20 rows are damaged, more than the 5.00% of bad_rows_limit: 2 x the image cannot be used; "
        f"they are listed in {row_images.quarantine.path}"
    )


def test_what_training_found_counts_after_a_restart(tmp_path):
    path = tmp_path / "quarantine.jsonl"
    opening = [Entry("a.json", 3, None, "an answer is empty", "")]
    first = Quarantine(path, rows=40, limit=0.05)
    first.begin(opening)
    first.add(Entry("a.json", 5, None, "the image cannot be used", "torn", found="training"))
    path.write_text(path.read_text() + '{"file": "a.js')  # torn by a kill
    again = Quarantine(path, rows=40, limit=0.05)
    again.begin(opening)
    assert [entry.row for entry in read_entries(path)] == [3, 5] and again.summary().startswith(
        "0 filtered, 2 damaged ("
    )
    again.add(Entry("a.json", 5, None, "the image cannot be used", "torn", found="training"))  # known
    with pytest.raises(UserError, match="3 of 40 rows are damaged"):
        again.add(Entry("a.json", 6, None, "the image cannot be used", "torn", found="training"))


def test_filtered_rows_do_not_count(open_data, tmp_path):
    human, gpt = ({"from": role, "value": "text"} for role in ("human", "gpt"))
    orders = [[gpt, human, gpt], [human, gpt, human], [human, human, gpt], [human, gpt, gpt], [gpt, human]]
    long = [{"from": "human", "value": "A?"}, {"from": "gpt", "value": "long " * 60}]
    turns = [GOOD, *orders, long, [human, {"from": "gpt", "value": ""}]]
    data = open_data([json.dumps({"conversations": each, "image": "red.png"}) for each in turns])
    assert [row["row"] for row in data.dataset] == [0]
    assert [entry.filtered for entry in data.bad_rows] == [True] * 6 + [False]
    path = tmp_path / "quarantine.jsonl"
    quarantine = Quarantine(path, data.opened, limit=1 / 8)
    quarantine.begin(data.bad_rows)  # one damaged row of eight
    assert [(entry.row, entry.damaged) for entry in read_entries(path)] == [(i, i == 7) for i in range(1, 8)]
    assert quarantine.summary() == (
        "6 filtered (5 x turns do not alternate human, gpt, ..., ending with gpt, 1 x longer than max_length 200), "
        f"1 damaged (1 x an answer is empty), see {path}"
    )
    quarantine.add(Entry("data.jsonl", 0, None, "of another kind", "", found="training", filtered=True))
    with pytest.raises(UserError, match="2 of 8 rows are damaged"):
        quarantine.add(Entry("data.jsonl", 0, None, "the image cannot be used", "", found="training"))


def test_a_file_without_the_new_field_is_read(tmp_path):
    old = {"file": "a.json", "row": 3, "id": None, "reason": "r", "detail": "", "found": "training", "used": False}
    (tmp_path / "quarantine.jsonl").write_text(json.dumps(old) + "\n")
    (entry,) = read_entries(tmp_path / "quarantine.jsonl")
    assert entry.damaged and not entry.filtered


def test_a_thousand_damaged_rows_are_all_quarantined(open_data):
    good = json.dumps({"image": "red.png", "conversations": GOOD})
    data = open_data([line for number in range(1200) for line in (fuzzed_row(number), good)])
    accepted = sorted(set(range(0, 2400, 2)) - {entry.row for entry in data.bad_rows})
    assert accepted == [], [fuzzed_row(row // 2) for row in accepted[:3]]
    assert data.opened == 2400 and len(data.bad_rows) == len(data.dataset) == 1200
    assert all(entry.reason and entry.file.endswith("data.jsonl") for entry in data.bad_rows)


@pytest.mark.slow
def test_a_thousand_damaged_images_are_all_quarantined(with_images, processor):
    data, row_images = with_images([*(fuzzed_image(number) for number in range(1200)), *[encoded()] * 400])
    collate = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, row_images)
    for batch in DataLoader(data.dataset, batch_size=16, collate_fn=collate):
        assert batch["pixel_values"].shape == (len(batch["input_ids"]), 3, 28, 28)
    entries = [entry for entry in read_entries(row_images.quarantine.path) if not entry.used]
    accepted = sorted(set(range(1200)) - {entry.row for entry in entries})
    assert accepted == [] and len(entries) == 1200
