"""What cannot be trained on: damaged rows and images are named, replaced and limited, and never crash a run."""

import io
import json
import random

import pytest
from PIL import Image

from modeling_aligned_llava.errors import UserError
from tests.train.data.rows import tokenization, turns
from train.data.images import RowImages
from train.data.prepared import open_training_data
from train.data.quarantine import Entry, Quarantine, read_entries
from train.data.sources import read_sources


def encoded(kind="JPEG", mode="RGB", size=(24, 20), seed=0, **options) -> bytes:
    noise = random.Random(seed).randbytes(size[0] * size[1] * 3)
    file = io.BytesIO()
    Image.frombytes("RGB", size, noise).convert(mode).save(file, kind, **options)
    return file.getvalue()


GOOD = turns("<image>\nA?", "one")


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


def test_an_image_that_cannot_be_used_is_named_and_replaced(with_images):
    data, row_images = with_images([encoded("TIFF", "I"), encoded()])
    rows, _ = row_images(list(data.dataset))
    (entry,) = read_entries(row_images.quarantine.path)
    assert [row["row"] for row in rows] == [1, 1] and "0.img has pixels of more than 8 bits" in entry.detail


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
    torn, other = (Entry("a.json", row, None, "the image cannot be used", "torn", when="training") for row in (5, 6))
    first = Quarantine(path, rows=40, limit=0.05)
    first.begin(opening)
    first.add(torn)
    path.write_text(path.read_text() + '{"file": "a.js')  # torn by a kill
    again = Quarantine(path, rows=40, limit=0.05)
    again.begin(opening)
    again.add(torn)  # known
    assert [entry.row for entry in read_entries(path)] == [3, 5]
    assert again.summary().startswith("0 filtered, 2 damaged (")
    with pytest.raises(UserError, match="3 of 40 rows are damaged"):
        again.add(other)


def test_filtered_rows_do_not_count(open_data, tmp_path):
    human, gpt = turns("text", "text")
    orders = [[gpt, human, gpt], [human, gpt, human], [human, human, gpt], [human, gpt, gpt], [gpt, human]]
    conversations = [GOOD, *orders, turns("A?", "long " * 60), turns("A?", "")]
    data = open_data([json.dumps({"conversations": each, "image": "red.png"}) for each in conversations])
    assert [row["row"] for row in data.dataset] == [0]
    assert [entry.filtered for entry in data.bad_rows] == [True] * 6 + [False]
    path = tmp_path / "quarantine.jsonl"
    quarantine = Quarantine(path, data.opened, limit=1 / 8)
    quarantine.begin(data.bad_rows)  # one damaged row of eight
    assert [(entry.row, entry.filtered) for entry in read_entries(path)] == [(i, i != 7) for i in range(1, 8)]
    assert quarantine.summary() == (
        "6 filtered (5 x turns do not alternate human, gpt, ..., ending with gpt, 1 x longer than max_length 200), "
        f"1 damaged (1 x an answer is empty), see {path}"
    )
    quarantine.add(Entry("data.jsonl", 0, None, "of another kind", "", when="training", filtered=True))
    with pytest.raises(UserError, match="2 of 8 rows are damaged"):
        quarantine.add(Entry("data.jsonl", 0, None, "the image cannot be used", "", when="training"))
