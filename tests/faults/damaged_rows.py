"""Damaged rows through the paths of training (JSON lines, parquet, streams), evaluation, diagnostics and demo.

Every row is used or named by file and row, and damage never spreads to the row beside it.
"""

import copy
import functools
import json
import random
from collections import Counter
from collections.abc import Iterator
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Any
from unittest.mock import patch

import datasets
import pyarrow as pa
import pyarrow.parquet
from transformers import AutoProcessor

from eval.data.benchmarks import BY_KEY
from eval.data.image_sample import in_benchmarks
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.documents import Documents
from tests.benchmark_stand_in import pope, write_dataset
from tests.faults.campaign import Campaign, Case
from tests.faults.child import in_child
from tests.faults.damaged_images import damaged_image
from tests.faults.tiny import tiny
from tests.train.data.test_quarantine import GOOD, encoded, fuzzed_row
from train.data.collator import ImageTextCollator
from train.data.prepared import open_training_data
from train.data.quarantine import Entry, Quarantine, read_entries
from train.data.row_images import RowImages
from train.data.sources import Source, read_sources
from train.data.streaming import images_of_stream, open_stream
from train.data.tokenization import IGNORE_INDEX, Tokenization


CHUNK = 250
SECONDS = 120
PEAK_MIB = 1000
PATHS = ("json lines", "parquet", "stream", "benchmark")
SCRAPS: list[Any] = [
    *[
        None,
        True,
        0,
        -1,
        2**70,
        1e308,
        float("nan"),
        float("-inf"),
        "",
        " ",
        "x",
        "\0",
        "\ud800",
        "<image>",
        "<|im_end|>",
    ],
    *["../good.png", "/etc/passwd", "a" * 5000, "\u202e", [], [[]], {}, {"": {}}, [None], [[[[[]]]]], {"from": "gpt"}],
]


def cases(seed: int) -> Iterator[Case]:
    """5,000 rows: as JSON lines 2,000, and by each other path 1,000."""
    for path in PATHS:
        for chunk in range(8 if path == "json lines" else 4):
            yield Case(f"{path} {chunk * CHUNK}-", functools.partial(rows_case, seed, path, chunk * CHUNK, CHUNK))


def rows_case(seed: int, path: str, first: int, count: int, folder: Path) -> dict[str, Any]:
    """`count` damaged rows through one path, in a child.

    Raises:
        AssertionError: with the number of the row.
    """
    tiny()  # before the fork
    work = {"json lines": _json_lines, "parquet": _parquet, "stream": _stream, "benchmark": _benchmark}[path]
    measured = in_child(functools.partial(work, seed, first, count, folder), SECONDS)
    assert measured["peak_mib"] < PEAK_MIB, f"{path} {first}-{first + count}: {measured['peak_mib']} MiB"
    return measured


def mutated(content: Any, chance: random.Random) -> Any:
    """A copy in which one to three values are replaced, removed or repeated."""
    content = copy.deepcopy(content)
    for _ in range(chance.randrange(1, 4)):
        places = [*_places(content)]
        if not places:
            break
        holder, key = chance.choice(places)
        damage = chance.randrange(4)
        if damage == 0:
            del holder[key]
        elif damage == 1 and isinstance(holder, list):
            holder.insert(key, copy.deepcopy(holder[key]))
        elif damage == 2 and isinstance(holder, dict):
            holder[chance.choice(["", "id", "image", "from", "value", key.upper()])] = holder.pop(key)
        else:
            holder[key] = copy.deepcopy(chance.choice(SCRAPS))
    return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each (container, key) in nested lists and dictionaries."""
    items = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in list(items):
        yield content, key
        yield from _places(value)


def _line(seed: int, number: int) -> tuple[bytes, bool]:
    """A line of JSON, and whether it can be no usable row."""
    chance = random.Random(f"row {seed} {number}")
    if number % 2:
        return fuzzed_row(chance.randrange(10**9)).encode(), True
    row = {"id": str(number), "image": "good.png", "conversations": [*GOOD, *GOOD]}
    text = json.dumps(mutated(row, chance)).encode()
    if chance.random() < 0.3:
        damaged = bytearray(text)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        text = bytes(damaged).replace(b"\n", b" ")
    return text or b"-", False


def _json_lines(seed: int, first: int, count: int, folder: Path, current: Synchronized) -> dict[str, Any]:
    current.value = first
    lines = [_line(seed, number) for number in range(first, first + count)]
    good = json.dumps({"image": "good.png", "conversations": GOOD}).encode()
    (folder / "good.png").write_bytes(encoded("PNG"))
    (folder / "data.jsonl").write_bytes(b"\n".join(line for text, _ in lines for line in (text or b"-", good)))
    data = open_training_data(read_sources(f"{folder}/data.jsonl", str(folder)), _tokenization(), folder / "cache")
    used, refused = _accounted(data.dataset, data.bad_rows, 2 * count, f"{folder}/data.jsonl")
    assert {*range(1, 2 * count, 2)} <= used, "a good row was refused"
    hopeless = {2 * number for number, (_, unusable) in enumerate(lines) if unusable}
    assert hopeless <= refused, [lines[row // 2][0] for row in sorted(hopeless - refused)[:3]]
    return {"rows": count, "rows refused": len(refused), "rows used": count - len(refused)}


def _parquet_row(seed: int, number: int) -> dict[str, Any]:
    """A row that fits its table's types; every value may be null."""
    chance = random.Random(f"parquet row {seed} {number}")
    texts = ["", " ", "<image>", "<image><image>", "<|im_end|>", "x", "long " * 300, None]

    def turn(role: str) -> dict[str, Any] | None:
        whole = {"from": role, "value": "<image>\nA?" if role == "human" else "one"}
        return chance.choice(
            [
                *[whole] * 4,
                {**whole, "value": chance.choice(texts)},
                {**whole, "from": chance.choice([None, "", "gpt", "user", "system"])},
                None,
            ]
        )

    embedded = {"bytes": encoded("PNG", seed=number), "path": None}
    _, damaged = damaged_image(seed, number)
    image = chance.choice(
        [
            *[embedded] * 3,
            {"bytes": damaged, "path": "x.png"},
            {"bytes": None, "path": chance.choice(["gone.png", "/etc/passwd", "../x", "", None])},
            None,
        ]
    )
    turns = [turn(role) for role in ("human", "gpt") * chance.randrange(1, 3)]
    return {
        "id": chance.choice([str(number), None]),
        "image": image,
        "conversations": chance.choice([*[turns] * 5, None, []]),
    }


def _write_parquet(seed: int, first: int, count: int, folder: Path) -> Source:
    """Damaged rows, each followed by a good one."""
    good = {"id": "good", "image": {"bytes": encoded("PNG"), "path": None}, "conversations": [*GOOD]}
    rows = [row for number in range(first, first + count) for row in (_parquet_row(seed, number), good)]
    text, file = pa.string(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    turns = pa.list_(pa.struct([("from", text), ("value", text)]))
    schema = pa.schema([("id", text), ("image", file), ("conversations", turns)])
    pa.parquet.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "data.parquet")
    return Source(str(folder / "data.parquet"), folder)


def _parquet(seed: int, first: int, count: int, folder: Path, current: Synchronized) -> dict[str, Any]:
    current.value = first
    source = _write_parquet(seed, first, count, folder)
    data = open_training_data([source], _tokenization(), folder / "cache")
    used, refused = _accounted(data.dataset, data.bad_rows, 2 * count, source.path)
    assert {*range(1, 2 * count, 2)} <= used, "a good row was refused"
    row_images = RowImages(data, Quarantine(folder / "quarantine.jsonl", data.opened, 1.0), seed=0)
    row_images.quarantine.begin(data.bad_rows)
    _collate(data.dataset, row_images, current)
    for entry in read_entries(row_images.quarantine.path):
        assert entry.file == source.path and entry.row % 2 == 0, entry
        refused |= set() if entry.used else {entry.row}
    return {"rows": count, "rows refused": len(refused), "rows used": count - len(refused)}


def _stream(seed: int, first: int, count: int, folder: Path, current: Synchronized) -> dict[str, Any]:
    current.value = first
    source = _write_parquet(seed, first, count, folder)
    quarantine = Quarantine(folder / "quarantine.jsonl", None, 1.0)
    quarantine.begin([])
    with patch.object(datasets.IterableDataset, "repeat", lambda stream, _: stream):  # it would have no end
        rows = [*open_stream([source], _tokenization(), quarantine, seed=0)]
    _collate(rows, images_of_stream, current)
    refused = {entry.row for entry in read_entries(quarantine.path) if not entry.used}
    assert all(row % 2 == 0 for row in refused), "a good row was refused"
    assert len(rows) + len(refused) == 2 * count, f"{2 * count - len(rows) - len(refused)} rows vanished"
    return {"rows": count, "rows refused": len(refused), "rows used": count - len(refused)}


def _benchmark(seed: int, first: int, count: int, folder: Path, current: Synchronized) -> dict[str, Any]:
    """Rows of POPE with a damaged image, question or answer: each reader names its row, or uses it."""
    rows, features = pope(count)
    stored = datasets.Features(
        {**features, "image": {"bytes": datasets.Value("binary"), "path": datasets.Value("string")}}
    )
    counts: Counter[str] = Counter(rows=count)
    for number, row in enumerate(rows):
        chance = random.Random(f"benchmark row {seed} {first + number}")
        row["image"] = {"bytes": encoded("PNG", seed=number), "path": None}
        damage = chance.choice(["image", "no image", "no bytes", "answer"])
        if damage == "image":
            row["image"]["bytes"] = damaged_image(seed, first + number)[1]
        elif damage == "no bytes":
            row["image"] = {"bytes": None, "path": chance.choice([None, "gone.png"])}
        else:
            row[damage.removeprefix("no ")] = None
    benchmark = BY_KEY["pope"]
    write_dataset(folder / benchmark.folder, {"Full": {benchmark.split: (rows, stored)}})
    questions = sorted(in_benchmarks(folder, count, keys=("pope",)), key=lambda each: int(each.id.partition("/")[2]))
    documents = Documents(
        datasets.Dataset.from_list(rows, features=stored).cast_column("image", datasets.Image()), "pope"
    )
    for number, question in enumerate(questions):
        current.value = first + number
        for name, open_image in (
            (f"row {number}", question.open),
            (f"pope document {number}", functools.partial(_shown, documents, number)),
        ):
            try:
                open_image()
            except UserError as error:
                assert name in str(error) and "\n" not in str(error), error
                counts["readings refused"] += 1
            else:
                counts["readings used"] += 1
    row = random.Random(f"question {seed} {first}").randrange(count)
    rows[row]["question"] = None
    write_dataset(folder / benchmark.folder, {"Full": {benchmark.split: (rows, stored)}})
    try:
        in_benchmarks(folder, count, keys=("pope",))
    except UserError as error:
        assert f"row {row} has no question" in str(error), error
    else:
        raise AssertionError(f"row {row} without a question was used")
    return dict(counts)


def _shown(documents: Documents, number: int) -> None:
    def visual(document: dict[str, Any]) -> list[Any]:
        return [document["image"].convert("RGB")]  # as in lmms-eval's task

    documents.look(visual, number)
    documents.open(visual, number)


def _accounted(dataset: Any, bad_rows: list[Entry], total: int, file: str) -> tuple[set[int], set[int]]:
    """The numbers of the rows used and refused, which are all rows, once each."""
    used = [row["row"] for row in dataset]
    for row in dataset:
        assert any(label != IGNORE_INDEX for label in row["labels"]), f"row {row['row']} has nothing to learn"
    refused = [entry.row for entry in bad_rows]
    assert sorted([*used, *refused]) == [*range(total)], "rows were lost or counted twice"
    assert all(entry.file == file and entry.reason for entry in bad_rows)
    return set(used), set(refused)


def _collate(rows: Any, open_images: Any, current: Synchronized) -> None:
    processor = _processor()
    collate = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, open_images)
    for start in range(0, len(rows), 8):
        current.value = start
        batch = collate([rows[number] for number in range(start, min(start + 8, len(rows)))])
        assert "pixel_values" not in batch or batch["pixel_values"].isfinite().all()


def _tokenization() -> Tokenization:
    processor = _processor()
    return Tokenization(processor.tokenizer, str(processor.chat_template), processor.image_token_id, 4, max_length=400)


@functools.cache
def _processor() -> Any:
    return AutoProcessor.from_pretrained(tiny().checkpoint)


CAMPAIGN = Campaign("damaged_rows", cases)
