"""`train.data fetch` against a stand-in of the Hub that serves a few rows of both datasets in their own schemas."""

import errno
import io
import json
import math
import shutil
import time
import zipfile
from types import SimpleNamespace

import huggingface_hub
import pytest
from datasets import Dataset, Value
from datasets import Image as ImageFeature
from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError
from PIL import Image

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading import hub as hub_file
from tests.dataset_hub import DatasetHub
from tests.local_server import Fault
from tests.train.data.rows import features, turns
from train.data.fetch import SETS, fetch
from train.data.sources import parsed_rows, raw_table, read_sources


NAMES = [f"{number // 4:05d}/{number:09d}.jpg" for number in range(8)]
NEXT_FEATURES = features(data_source=Value("string"), image=ImageFeature())


def picture(number):
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (number * 20, 50, 60)).save(file, "JPEG")
    return file.getvalue()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    pretrain, next_data = (tmp_path / "hub" / each.name for each in SETS.values())
    pretrain.mkdir(parents=True)
    (next_data / "data").mkdir(parents=True)
    rows = [{"id": n[6:-4], "image": n, "conversations": turns("<image>", f"shade {i}")} for i, n in enumerate(NAMES)]
    (pretrain / "blip_laion_cc_sbu_558k.json").write_text(json.dumps(rows))
    (pretrain / "README.md").write_text("not fetched")
    with zipfile.ZipFile(pretrain / "images.zip", "w") as zipped:
        for number, name in enumerate(NAMES):
            zipped.writestr(name, picture(number))
    for shard in (0, 1):
        cells = []
        for i in range(4):
            image = {"bytes": picture(i), "path": f"{i}.jpg"} if i % 2 else None
            row = {"id": f"{shard}-{i}", "conversations": turns("<image>", "x"), "image": image}
            cells.append({**row, "data_source": "llava-next-instruct"})
        path = next_data / "data" / f"train-0000{shard}-of-00002.parquet"
        Dataset.from_list(cells, features=NEXT_FEATURES).to_parquet(path)
    with DatasetHub(tmp_path / "hub") as hub:
        yield hub


@pytest.fixture
def get(hub, tmp_path):
    """`get(name, **options)` -> the folder, fetched from the stand-in."""

    def get(name, **options):
        fetch(name, tmp_path / "out", HfApi(endpoint=hub.endpoint, token="hf_x"), **options)  # noqa: S106
        return tmp_path / "out"

    return get


def raw_rows(path, folder, cache):
    (source,) = read_sources(str(path), str(folder))
    return parsed_rows(raw_table(source, str(cache)).with_format("arrow")[:], 0)


def test_both_datasets_come_as_training_reads_them(hub, get, tmp_path):
    get("llava-pretrain")
    folder = get("llava-next")
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {
        *("stage1.json", "images", "images.zip", "stage2", "fetched.json")
    }
    for number, name in enumerate(NAMES):
        assert (folder / "images" / name).read_bytes() == picture(number)
    assert [row["image"] for row in raw_rows(folder / "stage1.json", folder / "images", tmp_path / "cache")] == NAMES
    rows = raw_rows(folder / "stage2", folder / "images", tmp_path / "cache")
    assert [(row["id"], len(row["image"])) for row in rows] == [(f"{s}-{i}", i % 2) for s in (0, 1) for i in range(4)]
    record = json.loads((folder / "fetched.json").read_text())
    assert [record[name]["revision"] for name in SETS] == [each.commit for each in SETS.values()]
    sizes = {path.name: path.stat().st_size for path in hub.root.rglob("*.*")}
    assert all(
        size == sizes[path.split("/")[-1]] for entry in record.values() for path, size in entry["files"].items()
    )
    asked = {path for _, path, _ in hub.asked if "/revision/" in path}
    assert asked == {f"/api/datasets/{each.name}/revision/{each.commit}" for each in SETS.values()}


def test_what_is_complete_is_not_fetched_again(hub, get):
    folder = get("llava-pretrain")
    hub.asked.clear()
    get("llava-pretrain", remove_zip=True)
    assert hub.asked == [] and not (folder / "images.zip").exists() and (folder / "stage1.json").exists()
    ours = SETS["llava-pretrain"]
    get("llava-pretrain", revision=ours.commit)
    with pytest.raises(UserError, match=f"holds {ours.name} at {ours.commit}: fetch main to another folder"):
        get("llava-pretrain", revision="main")
    assert hub.asked == []


def test_an_interrupted_download_keeps_the_whole_files(hub, get, monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)
    hub.faults.append(Fault("GET .*images.zip", "drop", times=math.inf))
    with pytest.raises(UserError, match=r"^cannot fetch liuhaotian/LLaVA-Pretrain: "):
        get("llava-pretrain")
    folder = hub.root.parent / "out"
    rows = folder / ".llava-pretrain" / "blip_laion_cc_sbu_558k.json"
    rows.write_bytes((hub.root / SETS["llava-pretrain"].name / rows.name).read_bytes())
    hub.asked.clear()
    hub.faults.clear()
    get("llava-pretrain")
    assert hub.sent("images.zip") == [None] and hub.sent(rows.name) == []
    assert not rows.parent.exists() and (folder / "stage1.json").exists()


def test_a_file_of_another_size_is_an_error(hub, get, monkeypatch):
    monkeypatch.setattr(hub_file, "snapshot_download", lambda *_, local_dir, **__: (local_dir / "images.zip").touch())
    (hub.root.parent / "out" / ".llava-pretrain").mkdir(parents=True)
    with pytest.raises(UserError, match=r"^cannot fetch .*LLaVA-Pretrain: .*(json|zip) has not arrived in full"):
        get("llava-pretrain")


@pytest.mark.parametrize("error", [HfHubHTTPError.__new__(HfHubHTTPError), OSError("a\nb"), ValueError("c")])
def test_what_the_client_raises_is_one_line_without_keys(error):
    error.args = (f"{error}\nfor url https://host/file?X-Signature=secret",)
    with pytest.raises(UserError) as raised, hub_file.hub_errors_named("cannot fetch it"):
        raise error
    text = str(raised.value)
    assert text.startswith(f"cannot fetch it: {type(error).__name__}: ") and "\n" not in text
    assert text.endswith("for url https://host/file") and "secret" not in text


@pytest.mark.parametrize(
    ("error", "seen"),
    [(KeyboardInterrupt(), KeyboardInterrupt), (OSError(errno.ENOSPC, "no space left on device"), UserError)],
)
def test_an_interrupted_extraction_starts_again(hub, get, monkeypatch, error, seen):
    extracted = []

    def dying(zipped, member, target):
        if len(extracted) == 5:
            (target / NAMES[5]).write_bytes(b"torn")
            raise error
        extracted.append(zipped.extract(member, target))

    with monkeypatch.context() as patch, pytest.raises(seen):
        patch.setattr(zipfile.ZipFile, "extractall", lambda self, at: [dying(self, each, at) for each in NAMES])
        get("llava-pretrain")
    assert len(extracted) == 5 and not (hub.root.parent / "out/stage1.json").exists()
    hub.asked.clear()
    folder = get("llava-pretrain")
    assert hub.asked == []
    assert [(folder / "images" / name).read_bytes() for name in NAMES] == [picture(i) for i in range(8)]


@pytest.mark.parametrize(("name", "free"), [("llava-pretrain", 3000), ("llava-next", 1000)])
def test_a_full_disk_is_named_before_anything_is_downloaded(hub, get, monkeypatch, name, free):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    with pytest.raises(UserError, match=r"to download.*: 0\.0 GB, 0\.0 GB free in .*out; free 0\.0 GB or choose"):
        get(name)
    assert not [path for _, path, _ in hub.asked if "/resolve/" in path]


def link(name):
    info = zipfile.ZipInfo(name)
    info.external_attr = 0o120777 << 16
    return info


@pytest.mark.parametrize("member", ["../evil.jpg", "a/../../evil.jpg", "/evil.jpg", "..\\evil.jpg", link("evil.jpg")])
def test_an_archive_cannot_leave_its_folder(hub, get, member):
    archive = hub.root / SETS["llava-pretrain"].name / "images.zip"
    with zipfile.ZipFile(archive, "a") as zipped:
        zipped.writestr(member, "../../stage1.json")
    folder = get("llava-pretrain")
    files = [path for path in hub.root.parent.rglob("*evil.jpg") if path.is_file()]
    assert files and all(path.is_relative_to(folder / "images") and not path.is_symlink() for path in files)
