"""Rows streamed from parquet: the same rows as when stored, bad ones passed over, and a whole stage on them."""

import json
from itertools import islice

import datasets
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, Image
from torch.utils.data import DataLoader

from modeling_aligned_llava.errors import UserError
from tests.train.data.rows import features, tokenization
from tests.train.stage_results import assert_same_weights, interrupted_after
from train.data.collator import ImageTextCollator
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine, read_entries
from train.data.row_images import RowImages
from train.data.sources import read_sources
from train.data.streaming import first_streamed, images_of_stream, open_stream


FEATURES = features(image=Image())


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch):
    """`datasets` waits five seconds for its threads at the end of a pass."""
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0)


@pytest.fixture(scope="module")
def parquet(tiny_data, tmp_path_factory):
    """The tiny conversations of stage 2 as two parquet files with the images inside."""
    folder = tmp_path_factory.mktemp("parquet")
    rows = json.loads((tiny_data / "stage2.json").read_text())
    for row in rows:
        name = row.pop("image", None)
        row["image"] = None if name is None else {"bytes": (tiny_data / "images" / name).read_bytes(), "path": name}
    for number in (0, 1):
        Dataset.from_list(rows[number::2], features=FEATURES).to_parquet(folder / f"{number}.parquet")
    return folder


@pytest.fixture
def rows(parquet):
    """Those of the first file, with images as bytes."""
    return Dataset.from_parquet(str(parquet / "0.parquet")).cast_column("image", Image(decode=False)).to_list()


@pytest.fixture
def stream(processor, tmp_path):
    def make(*paths, limit=0.5, weights=None):
        path = str(paths[0])
        if len(paths) > 1:
            path = str(tmp_path / "mix.yaml")
            entries = [{"path": str(p), "weight": w} for p, w in zip(paths, weights, strict=True)]
            (tmp_path / "mix.yaml").write_text(json.dumps(entries))
        quarantine = Quarantine(tmp_path / "quarantine.jsonl", None, limit)
        return open_stream(read_sources(path, None), tokenization(processor, 200), quarantine, seed=3), quarantine

    return make


def batches(processor, rows, open_images, **loader):
    """The contents of 24 batches of one row each, in a form that can be compared."""
    collate = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, open_images)
    loaded = islice(DataLoader(rows, batch_size=1, collate_fn=collate, **loader), 24)
    return [{name: tensor.tolist() for name, tensor in batch.items()} for batch in loaded]


def test_the_rows_are_those_of_stored_data(processor, stream, parquet, tmp_path):
    sources = read_sources(str(parquet), None)
    stored = open_training_data(sources, tokenization(processor, 200), tmp_path / "cache")
    row_images = RowImages(stored, Quarantine(tmp_path / "q.jsonl", stored.opened, 0), seed=0)
    expected = batches(processor, stored.dataset, row_images)
    rows, quarantine = stream(parquet)
    for workers in (0, 2):
        places = [expected.index(batch) for batch in batches(processor, rows, images_of_stream, num_workers=workers)]
        assert sorted(places) == list(range(24)) and places != sorted(places)
    assert not quarantine.path.exists() and len(list(first_streamed(sources))) == 16


def test_bad_rows_are_passed_over_and_named(stream, rows, tmp_path):
    with_image = [row for row in rows if row["image"] is not None]
    with_image[0]["image"]["bytes"] = b"damaged"
    with_image[1]["image"] = {"bytes": None, "path": "../gone.png"}
    with_image[2]["conversations"].pop()
    with_image[3]["conversations"][1]["value"] = "w" * 500
    pq.write_table(Dataset.from_list(rows, features=FEATURES).data.table, tmp_path / "bad.parquet")
    streamed, quarantine = stream(tmp_path / "bad.parquet")
    assert len({tuple(row["input_ids"]) for row in islice(streamed, 8)}) == 8
    entries = read_entries(quarantine.path)
    assert {entry.id for entry in entries} == {row["id"] for row in with_image[:4]} and len(entries) == 4
    assert {entry.reason for entry in entries} == {
        "the image cannot be used",
        "there is no image_folder",
        "turns do not alternate human, gpt, ..., ending with gpt",
        "longer than max_length 200",
    }
    assert sorted(not entry.filtered for entry in entries) == [False, False, True, True]
    assert all(rows[entry.row]["id"] == entry.id for entry in entries)  # of the file, not of the shuffled stream
    streamed, _ = stream(tmp_path / "bad.parquet", limit=0.0015)  # of the first 1,000 rows
    with pytest.raises(UserError, match=r"2 of the first \d+ rows of .* are damaged, more than the 0.15% of bad_rows"):
        list(islice(streamed, 20))


def test_filtered_rows_do_not_end_a_stream_unless_nothing_is_left(stream, rows, tmp_path):
    for row in rows[1:]:
        row["conversations"].pop()
    Dataset.from_list(rows, features=FEATURES).to_parquet(tmp_path / "one.parquet")
    streamed, _ = stream(tmp_path / "one.parquet", limit=0)
    assert len(list(islice(streamed, 3))) == 3
    Dataset.from_list(rows[1:] * 100, features=FEATURES).to_parquet(tmp_path / "none.parquet")
    streamed, _ = stream(tmp_path / "none.parquet", limit=0)
    with pytest.raises(UserError, match=r"none of the first 1000 rows of .*none\.parquet can be used"):
        list(islice(streamed, 1))


def test_a_mixture_follows_its_weights(stream, parquet):
    streamed, _ = stream(parquet / "0.parquet", parquet / "1.parquet", weights=[9, 1])
    lengths = [row["length"] for row in streamed.take(30)]
    again, _ = stream(parquet / "0.parquet", parquet / "1.parquet", weights=[9, 1])
    assert lengths == [row["length"] for row in again.take(30)]
    only, _ = stream(parquet / "0.parquet")
    of_the_first = {tuple(row["input_ids"]) for row in islice(only, 12)}
    share = sum(tuple(row["input_ids"]) in of_the_first for row in streamed.take(100)) / 100
    assert 0.8 < share < 1


def test_json_is_not_streamed(stream, tiny_data):
    with pytest.raises(UserError, match="streaming is for parquet and Hub datasets, not for"):
        stream(tiny_data / "stage2.json")


def test_a_stage_streams_and_resumes_to_the_bit(train_stage, parquet, tmp_path):
    settings = {"data_path": parquet, "streaming": "true"}
    straight = train_stage(tmp_path / "straight", 2, "norm", **settings)
    with interrupted_after(4):
        train_stage(tmp_path / "stopped", 2, "norm", **settings)
    assert_same_weights(train_stage(tmp_path / "stopped", 2, "norm", **settings), straight)
