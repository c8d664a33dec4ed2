"""Damaged rows of JSON lines and parquet: each is used, or named by file and row.

Damage never spreads to the row beside it. `tests/train/data/test_quarantine.py` has the details.
"""

import copy
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.faults.damaged_images import damaged_image, encoded
from tests.faults.harness import bounded_memory, in_campaign
from tests.faults.mutations import places
from train.data.images import RowImages
from train.data.llava_tokens import ImageTextCollator
from train.data.prepared import TrainingData, open_training_data
from train.data.quarantine import Quarantine, read_entries
from train.data.row_tokens import IGNORE_INDEX
from train.data.sources import Source, read_sources


PEAK_MIB = 1000
ASKED = {"from": "human", "value": "<image>\nA?"}
ANSWERED = {"from": "gpt", "value": "one"}
NUMBERS = [None, True, 0, -1, 2**70, 1e308, float("nan"), float("-inf")]
TEXTS = ["", " ", "x", "\0", "\ud800", "\u202e", "<image>", "<|im_end|>", "../good.png", "/etc/passwd", "a" * 5000]
NESTED: list[Any] = [[], [[]], {}, {"": {}}, [None], [[[[[]]]]], {"from": "gpt"}]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Pillow warns of bombs and of EXIF
    pytest.mark.timeout(300),  # else a row may take half an hour
]
seeds = pytest.mark.parametrize(("seed", "count"), [(0, 24), *in_campaign((seed, 250) for seed in range(1, 5))])


@pytest.fixture
def good() -> bytes:
    """An image."""
    return encoded(random.Random(0), "PNG")


def mutated(content: Any, chance: random.Random) -> Any:
    """A copy in which one or two values are replaced, removed or repeated."""
    content = copy.deepcopy(content)
    for _ in range(chance.randrange(1, 3)):
        holder, key = chance.choice([*places(content)])
        damage = chance.randrange(3)
        if damage == 0:
            del holder[key]
        elif damage == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        else:
            holder[key] = copy.deepcopy(chance.choice([*NUMBERS, *TEXTS, *NESTED]))
    return content


def damaged_line(number: int, chance: random.Random) -> bytes:
    row = {"id": str(number), "image": "good.png", "conversations": [ASKED, ANSWERED, ASKED, ANSWERED]}
    text = bytearray(json.dumps(mutated(row, chance)).encode())
    if chance.random() < 0.3:
        text[chance.randrange(len(text))] = chance.randrange(256)
    return bytes(text).replace(b"\n", b" ")


def assert_accounted(data: TrainingData, count: int, file: str) -> None:
    """Each of `count` damaged rows, and of the good ones behind them, is used or refused once; no good one is."""
    assert all(any(label != IGNORE_INDEX for label in row["labels"]) for row in data.dataset), "nothing to learn"
    assert all(entry.file == file and entry.reason for entry in data.bad_rows)
    refused_rows = [entry.row for entry in data.bad_rows]
    assert all(row % 2 == 0 for row in refused_rows), "a good row was refused"
    assert sorted([*data.dataset["row"], *refused_rows]) == [*range(2 * count)], "rows were lost or counted twice"


@seeds
def test_json_lines(seed, count, good, how, tmp_path):
    chance = random.Random(seed)
    (tmp_path / "good.png").write_bytes(good)
    good_line = json.dumps({"image": "good.png", "conversations": [ASKED, ANSWERED]}).encode()
    lines = [line for number in range(count) for line in (damaged_line(number, chance), good_line)]
    path = tmp_path / "data.jsonl"
    path.write_bytes(b"\n".join(lines))
    with bounded_memory(PEAK_MIB):
        data = open_training_data(read_sources(str(path), str(tmp_path)), how, tmp_path / "cache")
    assert_accounted(data, count, str(path))


def damaged_row(number: int, chance: random.Random) -> dict[str, Any]:
    """A row that fits its table's types; every value may be null."""
    texts = ["", " ", "<image>", "<image><image>", "<|im_end|>", "x", "long " * 300, None]
    embedded = {"bytes": encoded(chance, "PNG"), "path": None}
    damaged = {"bytes": damaged_image(chance)[1], "path": "x.png"}
    absent = {"bytes": None, "path": chance.choice(["gone.png", "/etc/passwd", "../x", "", None])}
    turns = []
    for whole in (ASKED, ANSWERED) * chance.randrange(1, 3):
        other_text = {**whole, "value": chance.choice(texts)}
        other_role = {**whole, "from": chance.choice([None, "", "gpt", "user", "system"])}
        turns.append(chance.choice([*[whole] * 4, other_text, other_role, None]))
    return {
        "id": chance.choice([str(number), None]),
        "image": chance.choice([*[embedded] * 3, damaged, absent, None]),
        "conversations": chance.choice([*[turns] * 5, None, []]),
    }


def write_parquet(seed: int, count: int, good: bytes, folder: Path) -> Source:
    """Damaged rows, each followed by a good one."""
    chance = random.Random(seed)
    good_row = {"id": "good", "image": {"bytes": good, "path": None}, "conversations": [ASKED, ANSWERED]}
    rows = [row for number in range(count) for row in (damaged_row(number, chance), good_row)]
    text = pa.string()
    image = pa.struct([("bytes", pa.binary()), ("path", text)])
    turns = pa.list_(pa.struct([("from", text), ("value", text)]))
    schema = pa.schema([("id", text), ("image", image), ("conversations", turns)])
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "data.parquet")
    return Source(str(folder / "data.parquet"), folder)


@seeds
def test_parquet(seed, count, good, how, processor, tmp_path):
    source = write_parquet(seed, count, good, tmp_path)
    with bounded_memory(PEAK_MIB):
        data = open_training_data([source], how, tmp_path / "cache")
        assert_accounted(data, count, source.path)
        quarantine = Quarantine(tmp_path / "quarantine.jsonl", data.opened, 1.0)
        quarantine.begin(data.bad_rows)
        images = RowImages(data, quarantine, seed=0)
        collator = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, images)
        for start in range(0, len(data.dataset), 8):
            batch = collator([data.dataset[n] for n in range(start, min(start + 8, len(data.dataset)))])
            assert "pixel_values" not in batch or batch["pixel_values"].isfinite().all()
    entries = read_entries(quarantine.path)
    assert entries and all(entry.file == source.path and entry.row % 2 == 0 for entry in entries)
