"""A disk that is full or read-only: one line names the file, what was there stays, and with room the work goes on."""

import gc
import json
import random
import string
from pathlib import Path
from unittest import mock

import pytest

from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog
from modeling_aligned_llava.loading.files import build_once, exclusive_lock, replacing, write_json
from tests.faults.disks import KB, MB
from tests.faults.harness import in_campaign
from tests.one_line import one_line
from train.data.prepared import open_training_data
from train.data.quarantine import Entry, Quarantine, read_entries
from train.data.sources import read_sources
from train.monitoring.log import JsonLinesFile, drop_lines_after
from train.stage import run_stage


ROUNDS = 40
FULL = "no space left"
seeds = pytest.mark.parametrize("seed", [0, *in_campaign(range(1, 5))])


@pytest.fixture
def disk(mount):
    return mount("disk", 512 * KB)


@pytest.fixture
def rng(seed) -> random.Random:
    return random.Random(seed)


class Answers:
    """Of an evaluation. Like the other logs, it writes numbered lines, and reads the numbers back."""

    def __init__(self, path: Path) -> None:
        self.path, self.log = path, AnswerLog(path)

    def write(self, number: int, text: str) -> None:
        self.log.append([self.key(number)], [text])

    def read(self, numbers: list[int]) -> list[int]:
        self.log.close()
        again = AnswerLog(self.path)
        again.close()
        lines = self.path.read_bytes().count(b"\n")
        return [number for number in numbers if again.find([self.key(number)])] if lines == len(numbers) else []

    def key(self, number: int) -> AnswerKey:
        return AnswerKey("w", "task", number, "p", "", "")


class TrainingLog:
    def __init__(self, path: Path) -> None:
        self.file = JsonLinesFile(path)

    def write(self, number: int, text: str) -> None:
        self.file.append(mock.Mock(is_world_process_zero=True), {"step": number, "text": text})

    def read(self, numbers: list[int]) -> list[int]:
        drop_lines_after(self.file.path, numbers[-1])
        return [json.loads(line)["step"] for line in self.file.path.read_text().splitlines()]


class QuarantinedRows:
    def __init__(self, path: Path) -> None:
        self.quarantine = Quarantine(path, 500, 1.0)

    def write(self, number: int, text: str) -> None:
        self.quarantine.add(Entry("file.json", number, None, "broken", text))

    def read(self, numbers: list[int]) -> list[int]:
        return [entry.row for entry in read_entries(self.quarantine.path)]


@seeds
@pytest.mark.parametrize("kind", [Answers, TrainingLog, QuarantinedRows])
def test_lines_written_before_the_disk_was_full_stay(kind, disk, rng):
    for number in range(ROUNDS):
        path = disk.folder / f"{number}.jsonl"
        log, written = kind(path), [0]
        log.write(0, "x")
        with disk.full(left=rng.randrange(4 * KB, 40 * KB)), one_line(f"{path}: {FULL}"):
            for line in range(1, 500):
                log.write(line, "".join(rng.choices(string.printable, k=rng.randrange(4000))))
                written.append(line)
        assert log.read(written) == written
        path.unlink()


@seeds
def test_results_keep_their_content_until_the_new_one_is_there_in_full(disk, rng):
    path = disk.folder / "a run" / "scores.json"
    for _ in range(ROUNDS):
        before, after = ([rng.random() for _ in range(rng.randrange(2000, 6000))] for _ in range(2))
        write_json(path, before)
        with disk.full(left=rng.randrange(32 * KB)), one_line(f"{path}: {FULL}"):
            write_json(path, after)
        assert json.loads(path.read_text()) == before
        assert not [*disk.folder.rglob("*.unfinished")]
        write_json(path, after)
        assert json.loads(path.read_text()) == after


@pytest.mark.parametrize("seed", in_campaign(range(4)))
def test_a_preparation_goes_on(disk, rng, how, tiny_data, tmp_path):
    rows = json.loads((tiny_data / "stage2.json").read_text())
    for row in rows:
        row["conversations"][-1]["value"] = "".join(rng.choices(string.ascii_letters + " ", k=300)) + "."
    (tmp_path / "rows.json").write_text(json.dumps(rows * 40))
    sources = read_sources(str(tmp_path / "rows.json"), str(tiny_data / "images"))
    for size in sorted(rng.randrange(32, 1000) for _ in range(4)):
        disk.resize(size * KB)
        with one_line(f"{disk.folder}.*{FULL}"):
            open_training_data(sources, how, disk.folder)
        gc.collect()  # as the end of the program would, it closes the file that did not fit
        assert not [*disk.folder.rglob("*.unfinished")]
    disk.resize(64 * MB)
    prepared = open_training_data(sources, how, disk.folder).dataset[:]
    assert prepared == open_training_data(sources, how, tmp_path / "cache").dataset[:]


WRITING = {
    "results": lambda folder, stage2: write_json(folder / "scores.json", [2]),
    "a folder": lambda folder, stage2: build_once(folder / "new", lambda _: None),
    "a lock": lambda folder, stage2: exclusive_lock(folder / "scores.json", "busy").__enter__(),
    "a file": lambda folder, stage2: replacing(folder / "deep" / "file").__enter__(),
    "a stage": lambda folder, stage2: run_stage(stage2(folder)),
}


@pytest.mark.slow
@pytest.mark.campaign
@pytest.mark.parametrize("write", WRITING.values(), ids=WRITING)
def test_a_read_only_disk_is_named_and_what_is_there_can_be_used(write, stage2, mount):
    disk = mount("disk", 16 * MB)
    write_json(disk.folder / "scores.json", [1])
    build_once(disk.folder / "there", lambda unfinished: (unfinished / "x").touch())
    with disk.read_only():
        with one_line(f"{disk.folder}.*read-only"):
            write(disk.folder, stage2)
        assert json.loads((disk.folder / "scores.json").read_text()) == [1]
        assert not build_once(disk.folder / "there", lambda _: None)
