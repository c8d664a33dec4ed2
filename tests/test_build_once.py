"""Wherever processes may make the same folder: eight start together, none fails, and one does the work."""

import json
import multiprocessing
import os
import shutil
import signal
import socket
from itertools import chain

import pytest
from PIL import Image
from transformers import AutoConfig, AutoProcessor, dynamic_module_utils

from modeling_aligned_llava.assembly import from_backbones as assembly
from modeling_aligned_llava.assembly.from_backbones import assemble
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading import remote_code
from modeling_aligned_llava.loading.files import build_once, exclusive_lock, replacing
from modeling_aligned_llava.methods import method_fields
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import recorded
from tests.together import PROCESSES, together
from tests.train.data.rows import tokenization, turns
from tinyworld import build as tinyworld
from train.data import prepared as training_data
from train.data import sources


rounds = pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.campaign])])


def once_a_round(work, calls, rounds):
    """`together`, where `calls` grows in one process of each round, and there by one."""

    def counted(number):
        before = len(calls)
        result = work(number)
        return len(calls) - before, result

    results = together(counted, rounds)
    assert [sorted(made for made, _ in of_round) for of_round in results] == [[0] * (PROCESSES - 1) + [1]] * rounds
    return [[result for _, result in of_round] for of_round in results]


@rounds
def test_a_folder(rounds, tmp_path):
    def work(number):
        built = build_once(tmp_path / f"{number}/made", lambda folder: (folder / "file").write_text("whole"))
        assert (tmp_path / f"{number}/made/file").read_text() == "whole"
        return built

    assert all(sum(built) == 1 for built in together(work, rounds))
    assert {path.name for path in tmp_path.glob("*/*")} == {"made", ".made.lock"}


def test_a_failed_build_leaves_nothing_and_is_done_again(tmp_path):
    dead, foreign = (tmp_path / f".made.{host}-1-a.unfinished" for host in (socket.gethostname(), "other"))
    for left in (dead, foreign):
        left.mkdir()
        (left / "file").touch()

    def fail(folder):
        (folder / "file").touch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build_once(tmp_path / "made", fail)
    assert {path.name for path in tmp_path.iterdir()} == {".made.lock", foreign.name}  # that may be at work elsewhere
    assert build_once(tmp_path / "made", lambda folder: (folder / "file").touch())
    assert not build_once(tmp_path / "made", fail)


def test_where_the_lock_does_not_reach_the_first_folder_counts(tmp_path):
    def overtaken(folder):
        (folder / "file").write_text("second")
        (tmp_path / "made").mkdir()
        (tmp_path / "made/file").write_text("first")

    assert not build_once(tmp_path / "made", overtaken)
    assert (tmp_path / "made/file").read_text() == "first" and not list(tmp_path.glob("*.unfinished"))


def test_a_killed_builder_holds_up_nobody(tmp_path):
    def die(folder):
        (folder / "half").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    killed = multiprocessing.get_context("fork").Process(target=build_once, args=(tmp_path / "made", die))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL and len(list(tmp_path.glob(".made.*.unfinished"))) == 1
    assert build_once(tmp_path / "made", lambda folder: (folder / "whole").touch())
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["whole"]
    assert not list(tmp_path.glob(".made.*.unfinished"))


@rounds
def test_one_file(rounds, tmp_path):
    def work(number):
        with replacing(tmp_path / "file") as unfinished:
            unfinished.write_text(f"{os.getpid()}\n" * 1000)
        assert len(set((tmp_path / "file").read_text().split())) == 1

    together(work, rounds)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_an_exclusive_lock_is_refused_while_it_is_held(tmp_path):
    def work(number):
        with exclusive_lock(tmp_path / "run", "taken"):
            pass

    with exclusive_lock(tmp_path / "run", "taken"):
        with pytest.raises(AssertionError, match=r"8 failed(.|\n)*UserError: taken"):
            together(work, 1)
        with pytest.raises(UserError, match="taken"):
            work(0)
    work(0)


@rounds
def test_assembly(rounds, tiny_backbones, tmp_path, monkeypatch):
    calls = recorded(monkeypatch, assembly, "_assembled")

    def work(number):
        out = tmp_path / str(number)
        assemble(tiny_backbones.vision, tiny_backbones.qwen2, out, fields=method_fields("norm"), exist_ok=True)
        return sorted(file.name for file in out.iterdir())

    results = once_a_round(work, calls, rounds)
    assert all(names == results[0][0] and "model.safetensors" in names for names in chain(*results))


@pytest.fixture
def how(tiny_checkpoint):
    return tokenization(AutoProcessor.from_pretrained(tiny_checkpoint("norm")))


@pytest.fixture
def rows(tmp_path):
    """A JSON file of three rows, each with an image beside it."""
    folder = tmp_path / "rows"
    folder.mkdir()
    told = turns("<image>\nWhat?", "red")
    for name in "abc":
        Image.new("RGB", (9, 9)).save(folder / f"{name}.png")
    (folder / "rows.json").write_text(json.dumps([{"image": f"{name}.png", "conversations": told} for name in "abc"]))
    return folder / "rows.json"


@rounds
@pytest.mark.parametrize("read", [True, False], ids=["read", "prepare"])
def test_prepared_rows(rounds, read, how, rows, tmp_path, monkeypatch):
    calls = recorded(monkeypatch, *((sources, "_json_array") if read else (training_data, "_prepare")))
    (source,) = sources.read_sources(str(rows), str(rows.parent))

    def work(number):
        data = training_data.open_training_data([source], how, tmp_path / str(number))
        return list(data.dataset)

    results = once_a_round(work, calls, rounds)
    assert all(opened == results[0][0] and len(opened) == 3 for opened in chain(*results))


@rounds
def test_code_of_a_checkpoint(rounds, tmp_path, monkeypatch):
    monkeypatch.setattr(dynamic_module_utils, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.setattr(remote_code, "HF_MODULES_CACHE", str(tmp_path / "modules"))
    calls = recorded(monkeypatch, shutil, "copyfile")
    for number in range(rounds):
        folder = tmp_path / f"m{number}"
        folder.mkdir()
        padding = "# as long as a model\n" * 3000
        (folder / "config.json").write_text('{"model_type": "theirs", "auto_map": {"AutoConfig": "theirs.Theirs"}}')
        (folder / "theirs.py").write_text(
            f"{padding}from transformers import PreTrainedConfig\nclass Theirs(PreTrainedConfig):\n"
            f"    model_type = 'theirs'\n    number = {number}\n"
        )

    def work(number):
        remote_code.copy_remote_code(str(tmp_path / f"m{number}"))
        return AutoConfig.from_pretrained(tmp_path / f"m{number}", trust_remote_code=True).number

    assert once_a_round(work, calls, rounds) == [[number] * PROCESSES for number in range(rounds)]


@rounds
def test_tinyworld(rounds, tmp_path, monkeypatch):
    monkeypatch.setattr(tinyworld, "write_benchmarks", lambda root, world: root.mkdir())  # a minute
    calls = recorded(monkeypatch, tinyworld, "write_conversations")

    def work(number):
        tinyworld.build(tmp_path / str(number), images=1)
        return sorted(path.name for path in (tmp_path / str(number)).iterdir())

    expected = ["images", "mirrors", "stage1.json", "stage2.json"]
    assert once_a_round(work, calls, rounds) == [[expected] * PROCESSES] * rounds
