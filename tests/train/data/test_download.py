"""The commands of docs/train.md download both datasets, from a stand-in of the Hub, to where the recipes read them."""

import io
import json
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
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


@pytest.mark.slow
def test_both_datasets_come_as_training_reads_them(tmp_path):
    page = (REPOSITORY / "docs/train.md").read_text(encoding="utf-8")
    commands = re.search(r"```bash\n(hf download .*?)```", page, re.DOTALL)[1]
    write_datasets(tmp_path / "hub/liuhaotian/LLaVA-Pretrain", tmp_path / "hub/lmms-lab/LLaVA-NeXT-Data")
    with DatasetHub(tmp_path / "hub") as hub:
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "home")}
        environment |= {"NO_PROXY": "127.0.0.1", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        subprocess.run(["bash", "-ec", commands], cwd=tmp_path, env=os.environ | environment, check=True)  # noqa: S603, S607
        revisions = {commit for _, path, _ in hub.asked for commit in re.findall(r"/([0-9a-f]{40})", path)}
    assert revisions == set(re.findall(r"--revision (\w{40})", commands)) and len(revisions) == 2
    folder = tmp_path / "data/llava"
    assert {path.name for path in folder.iterdir() if path.name[0] != "."} == {
        *("stage1.json", "images", "images.zip", "stage2")
    }
    for number, name in enumerate(NAMES):
        assert (folder / "images" / name).read_bytes() == picture(number)
    assert [row["image"] for row in raw_rows(folder / "stage1.json", folder / "images", tmp_path / "cache")] == NAMES
    rows = raw_rows(folder / "stage2", folder / "images", tmp_path / "cache")
    assert [(row["id"], len(row["image"])) for row in rows] == [(f"{s}-{i}", i % 2) for s in (0, 1) for i in range(4)]
