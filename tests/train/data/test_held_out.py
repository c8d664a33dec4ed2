"""Rows that are held out from training: no copy of them, and no other row of their images, is trained on."""

import json

import numpy as np
import pytest
from datasets import Dataset, Image, List
from PIL import Image as Pictures

from modeling_aligned_llava.errors import UserError
from tests.one_line import one_line
from tests.train.data.rows import features, tokenization, turns
from train.data.held_out import held_out
from train.data.images import RowImages
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine, read_entries
from train.data.sources import read_sources


@pytest.fixture
def folder(tmp_path):
    """With images `0.png` ... `19.png`, of which no two are the same but all have the same size in bytes."""
    for number in range(20):
        Pictures.new("RGB", (9, 9), (10 * number, 128, 255)).save(tmp_path / f"{number}.bmp")
        (tmp_path / f"{number}.bmp").rename(tmp_path / f"{number}.png")
    return tmp_path


def write(path, rows):
    path.write_text(json.dumps(rows))
    return path


def shown(image, question="what?", answer="a dog"):
    return {"image": image, "conversations": turns(f"<image>\n{question}", answer)}


def mixture(folder, *entries):
    lines = [f"- {{path: {path}, weight: {weight}, image_folder: {images}}}" for path, weight, images in entries]
    (folder / "mix.yaml").write_text("\n".join(lines))
    return folder / "mix.yaml"


def split(path, processor, eval_rows, seed=0):
    sources = read_sources(str(path), str(path.parent))
    data = open_training_data(sources, tokenization(processor), path.parent / "cache", seed, eval_rows)
    return data, *([(r["source"], r["row"]) for r in side] for side in (data.dataset, data.evaluation))


def pixels(data, side):
    images = RowImages(data, Quarantine(data.sources[0].image_folder / "q.jsonl", data.opened, 1), seed=0)
    return {image.getpixel((0, 0)) for row in side for image in images([row])[1]}


def test_a_source_of_weight_two_is_split_before_it_is_repeated(processor, folder):
    write(folder / "a.json", [shown(f"{n}.png") for n in range(12)])
    data, train, held = split(mixture(folder, (folder / "a.json", 2, folder)), processor, 4)
    assert len(held) == len(set(held)) == 4 and sorted(train) == sorted(
        2 * [(0, n) for n in range(12) if (0, n) not in held]
    )
    assert not pixels(data, data.dataset) & pixels(data, data.evaluation)
    assert split(folder / "mix.yaml", processor, 4)[1:] == (train, held)
    assert split(folder / "mix.yaml", processor, 4, seed=1)[2] != held


def test_rows_of_one_image_stay_together_whatever_the_row_and_the_folder_call_it(processor, folder):
    """The file under two names, in two folders, inside a table, and in a row of two images."""
    other = folder / "other"
    other.mkdir()
    for number in range(20):
        (other / f"x{number}.png").write_bytes((folder / f"{number}.png").read_bytes())
    (folder / "link.png").symlink_to("0.png")
    write(folder / "a.json", [shown(f"{n}.png", question) for n in range(10) for question in ("what?", "which?")])
    write(
        folder / "b.json", [*(shown(f"x{n}.png", "where?") for n in range(10)), shown(["x2.png", "x3.png"], "<image>")]
    )
    write(folder / "c.json", [shown("link.png", "linked?"), shown("./1.png", "again?")])
    cells = [{"bytes": (other / f"x{n}.png").read_bytes(), "path": None} for n in range(10)]
    rows = [{"id": None, "image": cell, "conversations": turns("<image>\nembedded?", "x")} for cell in cells]
    Dataset.from_list(rows, features=features(image=Image())).to_parquet(folder / "d.parquet")
    folders = {"a.json": folder, "b.json": other, "c.json": folder, "d.parquet": folder}
    mixed = mixture(folder, *((folder / name, 1, images) for name, images in folders.items()))
    for seed in range(5):
        data, train, held = split(mixed, processor, 12, seed)
        assert len(train) + len(held) == 20 + 11 + 2 + 10 and 9 <= len(held) <= 12
        assert not pixels(data, data.dataset) & pixels(data, data.evaluation)


def test_embedded_images_are_compared_by_their_bytes(processor, folder):
    cells = [{"bytes": (folder / f"{n % 5}.png").read_bytes(), "path": f"{n}.png"} for n in range(10)]
    rows = [
        {"id": None, "images": [cell], "conversations": turns(f"<image>\n{n}?", "x")} for n, cell in enumerate(cells)
    ]
    Dataset.from_list(rows, features=features(images=List(Image()))).to_parquet(folder / "d.parquet")
    _, train, held = split(folder / "d.parquet", processor, 4)
    assert len(held) == 4 and {row % 5 for _, row in held}.isdisjoint({row % 5 for _, row in train})


def test_the_same_text_twice_is_one_row(processor, folder):
    texts = [{"id": str(n), "conversations": turns(f"{n % 6}?", "x")} for n in range(12)]
    mixed = mixture(folder, (write(folder / "a.json", texts), 1, folder), (write(folder / "b.json", texts), 3, folder))
    _, train, held = split(mixed, processor, 8)
    assert len(held) == 8 and {row % 6 for _, row in held}.isdisjoint({row % 6 for _, row in train})


def test_failing_images_are_replaced_on_their_side(processor, folder):
    data, train, held = split(write(folder / "a.json", [shown(f"{n}.png") for n in range(20)]), processor, 6)
    for _, row in (*held[:3], *train[:3]):
        (folder / f"{row}.png").write_bytes(b"damaged")
    images = RowImages(data, Quarantine(folder / "q.jsonl", data.opened, 1), seed=0)
    seen = []
    for epoch in (0, 1):
        images.epoch.fill_(epoch)
        for side, allowed in ((data.dataset, train[3:]), (data.evaluation, held[3:])):
            kept, opened = images(list(side))
            assert {(row["source"], row["row"]) for row in kept} == {*allowed} and len(opened) == len(side)
            seen.append([row["row"] for row in kept])
    assert seen[1] == seen[3] and seen[0] != seen[2]  # the loss is that of the same rows in all epochs
    assert {entry.row for entry in read_entries(folder / "q.jsonl")} == {row for _, row in (*held[:3], *train[:3])}


def test_too_few_rows_are_named(processor, folder):
    path = write(folder / "a.json", [shown("0.png", f"{n}?") for n in range(5)])
    with one_line("eval_rows 1: no row can be held out, because each shares images with many others"):
        split(path, processor, 1)
    with one_line("eval_rows 5 leaves none of the 5 rows to train on"):
        split(path, processor, 5)


def count(groups, wanted):
    rows = [[(0, group)] for group, size in enumerate(groups) for _ in range(size)]
    return int(held_out(rows, lambda part: part, np.ones(len(rows)), wanted, 0).sum())


@pytest.mark.parametrize(
    ("groups", "wanted", "held"),
    [([1] * 9, 4, 4), ([3] * 4, 4, 3), ([5] * 4, 3, 5), ([100, *[1] * 10], 10, 10), ([100, 2, 2], 3, 2)],
)
def test_about_as_many_as_wanted(groups, wanted, held):
    assert count(groups, wanted) == held


def test_only_what_looks_alike_is_read():
    rows = [[(size, name)] for name, size in enumerate([1, 1, 2, 3, 3, 3])]
    with pytest.raises(UserError):
        held_out(rows, lambda part: part, np.ones(6), 6, 0)
    read: list[int] = []
    held_out(rows[2:3] * 2 + rows[3:4], lambda part: read.append(part) or part, np.ones(3), 1, 0)
    assert read == []


def test_rows_are_drawn_by_weight():
    rows = [[(n, n)] for n in range(2000)]
    weights = np.array([1.0] * 1000 + [9.0] * 1000)
    held = held_out(rows, lambda part: part, weights, 200, 0)
    assert 160 <= held[1000:].sum() <= 195
