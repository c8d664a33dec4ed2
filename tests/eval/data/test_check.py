"""Fetching against a stand-in of the Hub's dataset API, and checking what lies in a root."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from huggingface_hub import HfApi

from eval.data import __main__ as command
from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.data.mirror import REVISIONS, problem
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import exclusive_lock
from tests.benchmark_stand_in import pope, write_dataset
from tests.dataset_hub import DatasetHub
from tests.faults.test_hub_trouble import online


@pytest.fixture
def hub(mirror_root):
    with DatasetHub(mirror_root) as hub:
        yield hub


@pytest.mark.slow
def test_fetch_brings_all_nine_once_and_keeps_to_their_revisions(hub, tmp_path):
    root, api = tmp_path / "root", HfApi(endpoint=hub.endpoint)
    with online(hub):
        command.fetch(root, api)
    assert json.loads((root / REVISIONS).read_text()) == {b.folder: b.revision or hub.commit for b in BENCHMARKS}
    assert [problem(root, benchmark, hub_rows=False) for benchmark in BENCHMARKS] == [None] * len(BENCHMARKS)
    parts = sum(path.endswith(".parquet") for _, path, _ in hub.asked)
    assert parts > len(BENCHMARKS)
    hub.asked.clear()
    with online(hub):
        command.fetch(root, api)
    assert not [path for _, path, _ in hub.asked if path.endswith(".parquet") and "resolve" not in path]
    revisions = json.loads((root / REVISIONS).read_text())
    revisions["lmms-lab-encoder/POPE"] = "b" * 40
    (root / REVISIONS).write_text(json.dumps(revisions))
    assert "revision 4db12766, but" in problem(root, BY_KEY["pope"], hub_rows=False)


def test_two_do_not_fetch_into_one_folder(tmp_path):
    with exclusive_lock(tmp_path / REVISIONS, ""), pytest.raises(UserError, match="another process is fetching to "):
        command.fetch(tmp_path, HfApi(endpoint="http://127.0.0.1:9"))


def test_check_names_what_is_missing(tmp_path):
    write_dataset(tmp_path / "lmms-lab-encoder/POPE", {"default": {"test": pope(6)}})
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=False) is None
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=True) == "6 rows of test, expected 9000"
    assert problem(tmp_path, BY_KEY["ai2d"], hub_rows=False).startswith("no folder ")
    rows, features = pope(6)
    for row in rows:
        del row["answer"]
    del features["answer"]
    write_dataset(tmp_path / "lmms-lab-encoder/POPE", {"default": {"test": (rows, features)}})
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=False) == "no column answer"


def test_the_command_fails_by_name(tmp_path, call, capsys, monkeypatch):
    monkeypatch.setattr(command, "fetch", lambda *_: None)
    with pytest.raises(UserError, match=r"benchmarks cannot be scored: mmbench \(no folder"):
        call(command.main, "fetch", tmp_path)
    assert "MMBench" in capsys.readouterr().out


def test_an_image_that_is_only_named_is_refused(tmp_path):
    """It could be any file of this machine."""
    folder = tmp_path / BY_KEY["pope"].folder
    write_dataset(folder, {"default": {"test": pope(6)}})
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=False) is None
    (file,) = folder.glob("data/*.parquet")
    rows = pyarrow.parquet.read_table(file)
    images = rows["image"].to_pylist()
    images[0], images[3] = None, {"bytes": None, "path": "/etc/hostname"}
    column = rows.schema.get_field_index("image")
    named = rows.set_column(column, rows.schema.field(column), pa.array(images, rows.schema.field(column).type))
    pyarrow.parquet.write_table(named, file)
    message = f"{file.name} names the image file '/etc/hostname' instead of holding it"
    assert problem(tmp_path, BY_KEY["pope"], hub_rows=False) == message
