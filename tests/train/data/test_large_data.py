"""100,000 generated rows: every one is there, in order, and memory does not grow with their number."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from datasets import Dataset

from tests import REPOSITORY
from tests.train.data.test_fetch import NEXT_FEATURES


ROWS = 100_000
SHARD = 20_000  # rows of a parquet file
WORDS = ("the", "model", "sees", "a", "red", "kite", "over", "the", "long", "green", "hill")
LONG, EMPTY = 1000, 1001  # of every 2,000 rows, one is longer than max_length and one has an empty answer


def row(number):
    words = [WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(15 + number % 11)]
    answer = "" if number % 2000 == EMPTY else " ".join(words) * (40 if number % 2000 == LONG else 1)
    turns = [{"from": "human", "value": f"<image>\nrow {number}?"}, {"from": "gpt", "value": answer}]
    return {"id": str(number), "image": "one.png", "conversations": turns}


def write_json(folder: Path, count: int) -> Path:
    (folder / "one.png").write_bytes(b"not opened before training")
    path = folder / "rows.json"
    path.write_text(json.dumps([row(number) for number in range(count)]))
    return path


def write_parquet(folder: Path, count: int) -> Path:
    """In LLaVA-NeXT-Data's schema, with images inside; like there, more rows are more files."""
    image = {"bytes": bytes(10_000), "path": "one.png"}
    for first in range(0, count, SHARD):
        rows = (row(number) for number in range(first, first + SHARD))
        cells = [{**each, "data_source": "llava-next-instruct", "image": image} for each in rows]
        Dataset.from_list(cells, features=NEXT_FEATURES).to_parquet(folder / f"train-{first:06d}.parquet")
    return folder


def open_rows(path: Path, folder: Path, checkpoint: str) -> None:
    """In a process of its own: print time and the peak of private memory in MB, its workers' included."""
    import os
    import threading
    import time

    from transformers import AutoProcessor

    from modeling_aligned_llava.loading.chat_templates import chat_template
    from train.data.prepared import open_training_data, read_column, row_lengths
    from train.data.sources import read_sources
    from train.data.tokenization import Tokenization

    def private(pid) -> float:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) / 1024
        except (OSError, StopIteration):  # it has ended
            return 0.0

    def sample() -> None:
        while True:
            children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
            peaks.append(max(private(pid) for pid in (os.getpid(), *children)))
            time.sleep(0.02)

    processor = AutoProcessor.from_pretrained(checkpoint)
    how = Tokenization(processor.tokenizer, chat_template("tinyworld"), processor.image_token_id, 4, 1000)
    sources = read_sources(str(path), str(folder))
    peaks = [private(os.getpid())]
    before = peaks[0]
    threading.Thread(target=sample, daemon=True).start()
    start, times = time.perf_counter(), os.times()
    data = open_training_data(sources, how, folder / "cache")
    lengths = row_lengths(data.dataset)
    seconds, after, peak = time.perf_counter() - start, os.times(), max(peaks)
    rows = {
        "numbers": read_column(data.dataset, "row").tolist(),
        "left out": [[entry.row, entry.filtered] for entry in data.bad_rows],
        "tokens": int(lengths.sum()),
        "seconds": seconds,
        "cpu_seconds": sum(after[:4]) - sum(times[:4]),
        "growth": peak - before,
        "peak": peak,
    }
    print(json.dumps(rows))  # noqa: T201


@pytest.fixture
def opened(tiny_checkpoint, tmp_path):
    def opened(count, write):
        folder = tmp_path / str(count)
        folder.mkdir()
        path = write(folder, count)
        code = f"from pathlib import Path; from {__name__} import open_rows; import train; "
        code += f"open_rows(Path({str(path)!r}), Path({str(folder)!r}), {str(tiny_checkpoint('norm'))!r})"
        ended = subprocess.run(  # noqa: S603
            [sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, check=True
        )
        return json.loads(ended.stdout.splitlines()[-1])

    return opened


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize(("write", "spare"), [(write_json, 32), (write_parquet, 300)])
def test_every_row_of_many_is_prepared_in_order_and_in_flat_memory(opened, record_property, write, spare):
    """`spare` MB of growth are allowed; the parquet files have 800 MB of images more, and one is held at a time."""
    few, many = opened(ROWS // 5, write), opened(ROWS, write)
    left_out = [number for number in range(ROWS) if number % 2000 in (LONG, EMPTY)]
    assert many["left out"] == [[number, number % 2000 == LONG] for number in left_out]
    assert many["numbers"] == sorted(set(range(ROWS)) - set(left_out))
    text = "<|im_start|>user\n<image>\n{}<|im_end|>\n<|im_start|>assistant\n{}<|im_end|>\n"
    expected = 0
    for number in many["numbers"]:
        asked, answered = (turn["value"] for turn in row(number)["conversations"])
        plain = text.format(asked.removeprefix("<image>\n"), answered)
        for token in ("<|im_start|>", "<|im_end|>"):
            plain = plain.replace(token, "t")
        expected += len(plain.replace("<image>", "tttt"))  # one token a byte, and four for the image
    assert many["tokens"] == expected
    for name in ("seconds", "cpu_seconds", "growth", "peak"):
        record_property(name, many[name])
    print(  # noqa: T201
        f"{ROWS / many['seconds']:,.0f} rows/s, {ROWS / many['cpu_seconds']:,.0f} rows per CPU second, "
        f"{expected / len(many['numbers']):.0f} tokens a row, largest process {many['peak']:.0f} MB, "
        f"growth {many['growth']:.0f} MB (a fifth of the rows: {few['growth']:.0f} MB)"
    )
    assert many["growth"] < few["growth"] + spare
