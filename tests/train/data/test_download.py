"""The commands of docs/train.md and the cloud job bring both datasets, from a stand-in of the Hub, to their places."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml
from datasets import Dataset, Value
from datasets import Image as ImageFeature
from PIL import Image

from tests import REPOSITORY
from tests.dataset_hub import DatasetHub
from tests.train.data.rows import features, turns
from train.data.sources import parsed_rows, raw_table, read_sources


NAMES = [f"{number // 4:05d}/{number:09d}.jpg" for number in range(8)]


def picture(number):
    file = io.BytesIO()
    Image.new("RGB", (20, 20), (number * 20, 50, 60)).save(file, "JPEG")
    return file.getvalue()


def write_datasets(pretrain, next_data):
    pretrain.mkdir(parents=True)
    (next_data / "data").mkdir(parents=True)
    rows = [{"id": n[6:-4], "image": n, "conversations": turns("<image>", f"shade {i}")} for i, n in enumerate(NAMES)]
    (pretrain / "blip_laion_cc_sbu_558k.json").write_text(json.dumps(rows))
    (pretrain / "blip_laion_cc_sbu_558k_meta.json").write_text("[]")  # is not read
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
        Dataset.from_list(cells, features=features(data_source=Value("string"), image=ImageFeature())).to_parquet(path)


def raw_rows(path, folder, cache):
    (source,) = read_sources(str(path), str(folder))
    return parsed_rows(raw_table(source, str(cache)).with_format("arrow")[:], 0)


def commands_of(page):
    if page.endswith(".yaml"):
        return yaml.safe_load((REPOSITORY / page).read_text())["setup"].replace("make install", "")
    return re.search(r"```bash\n((?:(?!```).)*?hf download .*?)```", (REPOSITORY / page).read_text(), re.DOTALL)[1]


@pytest.mark.slow
@pytest.mark.parametrize("page", ["docs/train.md", "configuration/launch/train.sky.yaml"])
def test_both_datasets_come_as_training_reads_them(page, tmp_path):
    commands, folder, programs = commands_of(page), tmp_path / "data/llava", Path(sys.executable).parent
    write_datasets(tmp_path / "hub/liuhaotian/LLaVA-Pretrain", tmp_path / "hub/lmms-lab/LLaVA-NeXT-Data")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/bin").symlink_to(programs)
    with DatasetHub(tmp_path / "hub") as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        environment |= {"NO_PROXY": "127.0.0.1", "PATH": f"{programs}:{os.environ['PATH']}", "DATA": "data/llava"}

        def download():
            command = ["bash", "-c", commands]
            return subprocess.run(command, cwd=tmp_path, env=os.environ | environment).returncode  # noqa: S603

        folder.mkdir(parents=True)
        (folder / "images").touch()  # stands where the images are to be extracted
        assert bool(download()) == page.endswith(".yaml")  # a job ends, the page goes on with the other dataset
        assert not (folder / "stage1.json").exists() and hub.sent("images.zip") == [None]
        (folder / "images").unlink()
        assert download() == 0
        assert hub.sent("images.zip") == [None]  # was whole
        asked = list(hub.asked)
        assert download() == 0 and hub.asked == asked
    revisions = {commit for _, path, _ in asked for commit in re.findall(r"/([0-9a-f]{40})", path)}
    assert revisions == set(re.findall(r"--revision (\w{40})", commands_of("docs/train.md"))) and len(revisions) == 2
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {
        *("stage1.json", "images", "images.zip", "stage2")
    }
    for number, name in enumerate(NAMES):
        assert (folder / "images" / name).read_bytes() == picture(number)
    assert [row["image"] for row in raw_rows(folder / "stage1.json", folder / "images", tmp_path / "cache")] == NAMES
    rows = raw_rows(folder / "stage2", folder / "images", tmp_path / "cache")
    assert [(row["id"], len(row["image"])) for row in rows] == [(f"{s}-{i}", i % 2) for s in (0, 1) for i in range(4)]
