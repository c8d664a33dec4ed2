"""A disk that fills up: one line names the file, the state from before stays, and with room the same work goes on."""

import json
import random
import shutil
import string
import zipfile
from pathlib import Path
from unittest import mock

import pytest

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from tests.faults.conftest import METHOD
from tests.faults.disks import KB, MB
from tests.faults.refusals import refused
from tests.faults.tiers import in_campaign
from train.data import fetch
from train.data.prepared import open_training_data
from train.data.quarantine import Entry, Quarantine, read_entries
from train.data.sources import read_sources
from train.data.tokenization import Tokenization
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


@seeds
def test_answers(disk, rng):
    """Batches of answers until the disk is full, and more when it has room again."""
    for round_number in range(ROUNDS):
        path = disk.folder / f"{round_number}.jsonl"
        log = AnswerLog(path)
        known: dict[AnswerKey, str] = {}

        def append(batch: int, log: AnswerLog = log, known: dict = known) -> None:
            keys = [AnswerKey("w", "task", 10 * batch + i, "p", "", "") for i in range(rng.randrange(1, 8))]
            texts = ["".join(rng.choices(string.printable, k=rng.randrange(600))) for _ in keys]
            log.append(keys, texts)
            known.update(zip(keys, texts, strict=True))

        append(0)
        with disk.full(left=rng.randrange(24 * KB)), refused(FULL, str(path)):
            for batch in range(1, 500):
                append(batch)
        assert log.find(list(known)) == list(known.values())
        append(1000)  # the same process goes on
        log.close()
        again = AnswerLog(path)
        assert len(again) == len(known) and again.find(list(known)) == list(known.values())
        again.close()
        path.unlink()


@seeds
def test_results(disk, rng):
    """A results file keeps its content until the new one is there in full."""
    path = disk.folder / "a run" / "scores.json"
    for _ in range(ROUNDS):
        before, after = ([rng.random() for _ in range(rng.randrange(2000, 6000))] for _ in range(2))
        write_json(path, before)
        with disk.full(left=rng.randrange(32 * KB)), refused(FULL, str(path)):
            write_json(path, after)
        assert json.loads(path.read_text()) == before
        assert not [*disk.folder.rglob("*.unfinished")]
        write_json(path, after)
        assert json.loads(path.read_text()) == after


@seeds
def test_a_training_log(disk, rng):
    """The lines from before stay readable."""
    state = mock.Mock(is_world_process_zero=True)
    for number in range(ROUNDS):
        path = disk.folder / f"{number}.log"
        log = JsonLinesFile(path)
        written = 0
        with disk.full(left=rng.randrange(4 * KB, 40 * KB)), refused(FULL, str(path)):
            for step in range(1, 500):
                log.append(state, {"step": step, "text": "x" * rng.randrange(4000)})
                written = step
        drop_lines_after(path, written)
        assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [*range(1, written + 1)]
        path.unlink()


@seeds
def test_the_quarantine(disk, rng):
    """The rows from before stay readable."""
    for number in range(ROUNDS):
        path = disk.folder / f"{number}.quarantine"
        quarantine = Quarantine(path, 500, 1.0)
        written = 0
        with disk.full(left=rng.randrange(4 * KB, 40 * KB)), refused(FULL, str(path)):
            for row in range(1, 500):
                quarantine.add(Entry("file.json", row, None, "broken", "x" * rng.randrange(4000)))
                written = row
        assert [entry.row for entry in read_entries(path)] == [*range(1, written + 1)]
        path.unlink()


@seeds
def test_extraction(disk, rng, tmp_path, monkeypatch):
    """The disk fills up while a zip is extracted, although it had room at the start."""
    monkeypatch.setattr(fetch, "require_space", lambda *_: "")
    names = {f"{number // 4}/{number}.jpg": rng.randbytes(rng.randrange(1, 9000)) for number in range(40)}
    packed = tmp_path / "images.zip"
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, content in names.items():
            zipped.writestr(name, content)
    for number in range(10):
        out = disk.folder / str(number)
        out.mkdir()
        with disk.full(left=rng.randrange(8 * KB, 120 * KB)), refused(FULL, str(out)):
            fetch._extract(packed, out)
        fetch._extract(packed, out)
        assert all((out / name).read_bytes() == content for name, content in names.items())
        shutil.rmtree(out)


@pytest.mark.parametrize("seed", in_campaign(range(4)))
def test_preparation_of_data(disk, rng, checkpoint, tiny_data, tmp_path):
    """Rows are checked and tokenized on a disk that is too small at first."""
    rows = json.loads((tiny_data / "stage2.json").read_text())
    for row in rows:
        row["conversations"][-1]["value"] = "".join(rng.choices(string.ascii_letters + " ", k=300)) + "."
    (tmp_path / "rows.json").write_text(json.dumps(rows * 40))
    sources = read_sources(str(tmp_path / "rows.json"), str(tiny_data / "images"))
    tokenizer = load_part(SavedTokenizer, checkpoint)
    image = tokenizer.get_vocab()["<image>"]
    how = Tokenization(tokenizer, str(tokenizer.chat_template), image_token_id=image, image_tokens=4, max_length=512)
    for size in sorted(rng.randrange(32, 1000) for _ in range(4)):
        disk.resize(size * KB)
        with refused(FULL, str(disk.folder)):
            open_training_data(sources, how, disk.folder)
        assert not [*disk.folder.rglob("*.unfinished")]
    disk.resize(64 * MB)
    found = open_training_data(sources, how, disk.folder).dataset[:]
    assert found == open_training_data(sources, how, tmp_path / "cache").dataset[:]


@pytest.mark.parametrize("seed", in_campaign(range(8)))
def test_training(disk, rng, stage2, checkpoint, assert_undisturbed):
    """A stage runs out of disk at some file of a checkpoint or of the final model."""
    weights = sum(path.stat().st_size for path in checkpoint.glob("*.safetensors"))
    whole = 3 * weights + 200 * KB  # of a checkpoint: weights, two moments and the rest, about
    stage = disk.folder / METHOD / "stage2"
    for share in sorted(rng.uniform(0.2, 2.9) for _ in range(2)):
        disk.resize(int(share * whole))
        last = last_complete(stage)
        try:
            run_stage(stage2(disk.folder))
        except UserError as error:
            assert FULL in str(error) and str(disk.folder) in str(error), error
        assert last_complete(stage) >= last, "a checkpoint was lost"
        torn = [path for path in stage.glob("checkpoint-*") if not (path / "checkpoint_complete.json").exists()]
        assert not torn
    disk.resize(8 * whole)
    run_stage(stage2(disk.folder))
    assert_undisturbed(stage)


def last_complete(stage: Path) -> int:
    """Step of the last complete checkpoint; 0 without one."""
    markers = stage.glob("checkpoint-*/checkpoint_complete.json")
    return max((int(marker.parent.name.rpartition("-")[2]) for marker in markers), default=0)
