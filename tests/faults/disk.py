"""Full and read-only disks, a home on another file system, and a long path with spaces and umlauts.

A full disk must end in one line that names the file, with the state from before; with room, the same work goes on and
ends as if nothing had happened.
"""

import functools
import json
import os
import random
import shutil
import string
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import load_file

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog
from modeling_aligned_llava.loading.build_once import build_once, exclusive_lock, replacing
from modeling_aligned_llava.loading.checkpoint import load_part
from modeling_aligned_llava.loading.files import write_json as write_result
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from tests import REPOSITORY
from tests.faults.campaign import Campaign, Case
from tests.faults.mounts import NoMount, tmpfs
from tests.faults.refusals import refused
from tests.faults.tiny import METHOD, tiny
from train import archive
from train.data.prepared import TrainingData, open_training_data
from train.data.quarantine import Entry, Quarantine, read_entries
from train.data.sources import read_sources
from train.data.tokenization import Tokenization
from train.monitoring.log import JsonLinesFile, drop_lines_after
from train.stage import run_stage


KB, MB = 1 << 10, 1 << 20
ROUNDS = 40
UNFINISHED = ".unfinished"


def no_half_files(folder: Path) -> None:
    half = [path for path in folder.rglob("*") if path.name.endswith(UNFINISHED)]
    assert not half, f"left: {half}"


def answers(rng: random.Random, folder: Path) -> dict[str, int]:
    """Batches of answers until the disk is full, and more when it has room again."""
    batches = 0
    with tmpfs(folder / "disk", 512 * KB) as disk:
        for round_number in range(ROUNDS):
            path = disk.folder / f"{round_number}.jsonl"
            log, known = AnswerLog(path), {}

            def append(batch: int, log: AnswerLog = log, known: dict = known, number: int = round_number) -> None:
                keys = [
                    AnswerKey("w", "task", 10 * batch + i, "p", "", f"{number}") for i in range(rng.randrange(1, 8))
                ]
                texts = ["".join(rng.choices(string.printable, k=rng.randrange(600))) for _ in keys]
                log.append(keys, texts)
                known.update(zip(keys, texts, strict=True))

            append(0)
            with disk.full(left=rng.randrange(0, 24 * KB)), refused("no space left", str(path)):
                for batch in range(1, 500):
                    append(batch)
            batches += len(known)
            assert log.find(list(known)) == list(known.values())
            append(1000)  # the same process goes on
            log.close()
            again = AnswerLog(path)
            assert len(again) == len(known) and again.find(list(known)) == list(known.values())
            again.close()
            path.unlink()
    return {"full": ROUNDS, "answers kept": batches}


def results(rng: random.Random, folder: Path) -> dict[str, int]:
    """A results file keeps its content until the new one is there in full."""
    with tmpfs(folder / "disk", 512 * KB) as disk:
        path = disk.folder / "a run" / "scores.json"
        for _ in range(ROUNDS):
            before, after = ([rng.random() for _ in range(rng.randrange(2000, 6000))] for _ in range(2))
            write_result(path, before)
            with disk.full(left=rng.randrange(0, 32 * KB)), refused("no space left", str(path)):
                write_result(path, after)
            assert json.loads(path.read_text()) == before
            no_half_files(disk.folder)
            write_result(path, after)
            assert json.loads(path.read_text()) == after
    return {"full": ROUNDS}


def folders(rng: random.Random, folder: Path) -> dict[str, int]:
    """A folder that is built appears whole or not at all."""
    with tmpfs(folder / "disk", 512 * KB) as disk:
        for number in range(ROUNDS):
            path, content = disk.folder / str(number), rng.randbytes(rng.randrange(40, 90) * KB)

            def build(unfinished: Path, content: bytes = content) -> None:
                for part in range(3):
                    (unfinished / str(part)).write_bytes(content)

            with disk.full(left=rng.randrange(0, 100 * KB)), refused("no space left", str(path)):
                build_once(path, build)
            assert not path.exists()
            no_half_files(disk.folder)
            assert build_once(path, build) and (path / "2").read_bytes() == content
            shutil.rmtree(path)
    return {"full": ROUNDS}


def logs(rng: random.Random, folder: Path) -> dict[str, int]:
    """Lines of training logs and of the quarantine: those from before stay readable."""
    with tmpfs(folder / "disk", 512 * KB) as disk:
        for number in range(ROUNDS):
            log, quarantine = disk.folder / f"{number}.log", disk.folder / f"{number}.quarantine"
            writer, bad_rows = JsonLinesFile(log), Quarantine(quarantine, None, 1.0)
            written = {log: 0, quarantine: 0}

            def add_line(step: int, writer: JsonLinesFile = writer) -> None:
                state = mock.Mock(is_world_process_zero=True)
                writer.append(state, {"step": step, "text": "x" * rng.randrange(4000)})

            def add_row(row: int, bad_rows: Quarantine = bad_rows) -> None:
                bad_rows.add(Entry("file.json", row, None, "broken", "x" * rng.randrange(4000)))

            for path, add in ((log, add_line), (quarantine, add_row)):
                with disk.full(left=rng.randrange(4 * KB, 40 * KB)), refused("no space left", str(path)):
                    for line in range(1, 500):
                        add(line)
                        written[path] = line
            drop_lines_after(log, written[log])
            steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
            assert steps == list(range(1, written[log] + 1))
            kept = [entry.row for entry in read_entries(quarantine)]
            assert kept == list(range(1, written[quarantine] + 1))
            log.unlink(), quarantine.unlink()
    return {"full": 2 * ROUNDS}


def extraction(rng: random.Random, folder: Path) -> dict[str, int]:
    """The disk fills up while a zip is extracted, although it had room at the start."""
    names = {f"{number // 4}/{number}.jpg": rng.randbytes(rng.randrange(1, 9000)) for number in range(40)}
    packed = folder / "images.zip"
    with zipfile.ZipFile(packed, "w") as zipped:
        for name, content in names.items():
            zipped.writestr(name, content)
    with tmpfs(folder / "disk", 512 * KB) as disk:
        for number in range(ROUNDS // 4):
            out = disk.folder / str(number)
            out.mkdir()
            room = mock.patch.object(archive, "require_space", lambda *_: "")
            with disk.full(left=rng.randrange(8 * KB, 120 * KB)), room, refused("no space left", str(out)):
                archive.extract_zip(packed, out)
            there = {str(path.relative_to(out)) for path in out.rglob("*.jpg")}
            assert len(there) < len(names) and all((out / name).read_bytes() == names[name] for name in there)
            archive.extract_zip(packed, out)
            assert all((out / name).read_bytes() == content for name, content in names.items())
            shutil.rmtree(out)
    return {"full": ROUNDS // 4}


@functools.cache
def how() -> Tokenization:
    tokenizer = load_part(SavedTokenizer, tiny().checkpoint)
    image = tokenizer.get_vocab()["<image>"]
    return Tokenization(tokenizer, str(tokenizer.chat_template), image_token_id=image, image_tokens=4, max_length=512)


def opened(folder: Path, cache: Path) -> TrainingData:
    sources = read_sources(str(folder / "rows.json"), str(tiny().data / "images"))
    return open_training_data(sources, how(), cache)


def preparation(rng: random.Random, folder: Path) -> dict[str, int]:
    """Rows are checked and tokenized on a disk that is too small at first."""
    rows = json.loads((tiny().data / "stage2.json").read_text())
    for row in rows:
        row["conversations"][-1]["value"] = "".join(rng.choices(string.ascii_letters + " ", k=300)) + "."
    (folder / "rows.json").write_text(json.dumps(rows * 40))
    wanted = opened(folder, folder / "cache").dataset[:]
    failures = 0
    with tmpfs(folder / "disk", 64 * KB) as disk:
        for size in sorted(rng.randrange(32, 2500) for _ in range(4)):
            disk.resize(size * KB)
            try:
                opened(folder, disk.folder)
            except UserError as error:
                assert "no space left" in str(error) and str(disk.folder) in str(error), error
                failures += 1
        disk.resize(64 * MB)
        found = opened(folder, disk.folder).dataset[:]
    assert found == wanted
    return {"full": failures}


def training(rng: random.Random, folder: Path) -> dict[str, Any]:
    """A stage runs out of disk at some file of a checkpoint or of the final model."""
    whole = checkpoint_size()
    failures, ended = 0, []
    with tmpfs(folder / "disk", MB) as disk:
        arguments = tiny().stage2(disk.folder)
        stage = disk.folder / METHOD / "stage2"
        for share in sorted(rng.uniform(0.2, 2.9) for _ in range(2)):
            disk.resize(int(share * whole))
            last = complete(stage)
            try:
                run_stage(arguments)
            except UserError as error:
                assert "no space left" in str(error) and str(disk.folder) in str(error), error
                failures += 1
                ended.append(Path(str(error).split(":")[0].removeprefix("cannot write ")).name)
            else:
                break
            assert complete(stage) >= last, f"{share:.2f} checkpoints: step {last} was lost for {complete(stage)}"
            torn = [
                path.name for path in stage.glob("checkpoint-*") if not (path / "checkpoint_complete.json").exists()
            ]
            assert not torn, f"left: {torn}"
        disk.resize(8 * whole)
        run_stage(arguments)
        assert_same_weights(straight(), stage)
    return {"full": failures, "written": ended}


@functools.cache
def straight() -> Path:
    """Stage 2 without any trouble."""
    run_stage(tiny().stage2(tiny().root / "straight"))
    return tiny().root / "straight" / METHOD / "stage2"


def complete(stage: Path) -> int:
    """Step of the last complete checkpoint; 0 without one."""
    steps = [
        int(marker.parent.name.rpartition("-")[2]) for marker in stage.glob("checkpoint-*/checkpoint_complete.json")
    ]
    return max(steps, default=0)


def checkpoint_size() -> int:
    """Bytes of a checkpoint, about: weights and two moments in float32, and the rest."""
    weights = sum(path.stat().st_size for path in tiny().checkpoint.glob("*.safetensors"))
    return 3 * weights + 200 * KB


def assert_same_weights(one: Path, other: Path) -> None:
    ours, theirs = (load_file(stage / "model.safetensors") for stage in (one, other))
    different = [name for name, tensor in ours.items() if not torch.equal(tensor, theirs[name])]
    assert not different, f"differ: {different[:3]}"


def read_only(rng: random.Random, folder: Path) -> dict[str, int]:
    """Nothing can be written: one line, and nothing is changed."""
    with tmpfs(folder / "disk", 16 * MB) as disk:
        path = disk.folder / "scores.json"
        write_result(path, [1])
        build_once(disk.folder / "there", lambda unfinished: (unfinished / "x").touch())
        attempts: list[Callable[[], object]] = [
            lambda: write_result(path, [2]),
            lambda: build_once(disk.folder / "new", lambda _: None),
            lambda: run_stage(tiny().stage2(disk.folder)),
            lambda: exclusive_lock(path, "busy").__enter__(),
            lambda: replacing(disk.folder / "deep" / "file").__enter__(),
        ]
        with disk.read_only():
            for number, attempt in enumerate(attempts):
                try:
                    attempt()
                except UserError as error:
                    assert "read-only" in str(error) and str(disk.folder) in str(error), error
                else:
                    raise AssertionError(f"attempt {number} wrote to a read-only disk")
            assert not build_once(disk.folder / "there", lambda _: None)  # what is there can be used
            assert json.loads(path.read_text()) == [1]
    return {"read-only": len(attempts)}


def other_file_systems(rng: random.Random, folder: Path) -> dict[str, int]:
    """Home, temporary files, data cache and results each on a file system of their own."""
    with (
        tmpfs(folder / "home", 64 * MB) as home,
        tmpfs(folder / "temporary", 64 * MB) as temporary,
        tmpfs(folder / "cache", 64 * MB) as cache,
        tmpfs(folder / "results", 64 * MB) as out,
    ):
        places = {"HOME": home.folder, "HF_HOME": home.folder / "hf", "TMPDIR": temporary.folder}
        train(tiny().stage2(out.folder, data_cache=cache.folder), places)
        assert_same_weights(straight(), out.folder / METHOD / "stage2")
    return {"stages": 1}


def long_path(rng: random.Random, folder: Path) -> dict[str, int]:
    """200 characters with spaces, umlauts, quotes and signs that mean something to shells and globs."""
    words = ["Größe über alles", "it's [a] {test}", "$(touch oops)", "100 % & more;", "äöü ß é 文字", "*?"]
    deep = folder
    while len(str(deep.relative_to(folder))) < 200:
        deep = deep / " ".join(rng.sample(words, 2))
    deep.mkdir(parents=True)
    for part in ("data", "checkpoint"):
        shutil.copytree(tiny().root / part, deep / part)
    given = {"data_path": deep / "data/stage2.json", "image_folder": deep / "data/images", "data_cache": deep / "rows"}
    train(tiny().stage2(deep, model_name_or_path=deep / "checkpoint", **given), {"HF_HOME": deep / "home"})
    assert_same_weights(straight(), deep / METHOD / "stage2")
    assert not list(folder.rglob("oops")) and not (REPOSITORY / "oops").exists()
    return {"stages": 1}


def train(arguments: list[str], places: dict[str, Path]) -> None:
    """Run a stage as a program of its own, with other folders in its environment."""
    environment = os.environ | {name: str(path) for name, path in places.items()}
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "train.sft", *arguments]
    done = subprocess.run(command, env=environment, cwd=REPOSITORY, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr[-1500:]


WORK: dict[Callable[[random.Random, Path], dict[str, Any]], int] = {
    answers: 4,
    results: 4,
    folders: 2,
    logs: 4,
    extraction: 2,
    preparation: 4,
    training: 8,
    read_only: 1,
    other_file_systems: 1,
    long_path: 1,
}


def run(work: Callable[[random.Random, Path], dict[str, Any]], seed: str, folder: Path) -> dict[str, Any]:
    try:
        return work(random.Random(seed), folder)
    except NoMount as error:
        return {"not run": 1, "reason": str(error)}


def cases(seed: int) -> Iterator[Case]:
    for work, times in WORK.items():
        for number in range(times):
            name = f"{work.__name__} {number}"
            yield Case(name, functools.partial(run, work, f"{seed} {name}"))


CAMPAIGN = Campaign("disk", cases)
