"""Fetch the paper's training data from the Hub to one folder that serves all backbones.

`FOLDER/stage1.json` with `FOLDER/images/` is LLaVA-558K, `FOLDER/stage2/` (parquet) is LLaVA-NeXT-Data. Each appears
when it is complete. `FOLDER/fetched.json` records commits and sizes.
"""

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from huggingface_hub import HfApi

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.build_once import exclusive_lock
from modeling_aligned_llava.loading.disk_errors import disk_errors_named, require_space
from modeling_aligned_llava.loading.hub import find_dataset
from train.stage_folder import say, write_json


@dataclass(frozen=True)
class TrainingSet:
    """A dataset on the Hub.

    Args:
        name: Hub id.
        commit: the commit that is fetched by default.
        patterns: the files that are fetched.
    """

    name: str
    commit: str
    patterns: tuple[str, ...]


SETS = {
    "llava-pretrain": TrainingSet(
        "liuhaotian/LLaVA-Pretrain",
        "70f9d1e5e1a697fe35830875cfc7de1dd590d727",  # of July 2023, the only one
        ("blip_laion_cc_sbu_558k.json", "images.zip"),
    ),
    "llava-next": TrainingSet(
        "lmms-lab/LLaVA-NeXT-Data",
        "6b34794b6a37772bfb50b0bfaa5de4356fc8dba4",  # of August 2024; all parquet files are older
        ("data/train-*.parquet",),
    ),
}


def fetch(name: str, folder: Path, api: HfApi, revision: str | None = None, remove_zip: bool = False) -> None:
    """Fetch a dataset of `SETS`; started again, it keeps the files that are whole.

    Args:
        name: a key of `SETS`.
        folder: created if it does not exist.
        api: the Hub.
        revision: another commit, branch or tag than that of `SETS`.
        remove_zip: remove `images.zip` after it was extracted.

    Raises:
        UserError: the folder holds another revision, the disk is too small, or the Hub refuses or does not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(folder / "fetched.json", f"another process is fetching to {folder}"):
        files = _downloaded(name, folder, api, revision)
        if name == "llava-pretrain":
            _finish_pretrain(folder, _unfinished(folder, name), remove_zip)
        elif not (folder / "stage2").exists():
            os.replace(_unfinished(folder, name) / "data", folder / "stage2")
        shutil.rmtree(_unfinished(folder, name), ignore_errors=True)
    say(f"{folder}: {name} is complete, {len(files)} files")


def _downloaded(name: str, folder: Path, api: HfApi, revision: str | None) -> dict[str, int]:
    """The files of the dataset, by size, downloaded unless an earlier call did so."""
    wanted, unfinished = SETS[name], _unfinished(folder, name)
    record_file = folder / "fetched.json"
    record = json.loads(record_file.read_text(encoding="utf-8")) if record_file.exists() else {}
    entry = record.get(name, {})
    begun = entry.get("revision")
    if begun and revision not in (None, begun):
        raise UserError(f"{folder} holds {wanted.name} at {begun}: fetch {revision} to another folder")
    if entry.get("files"):
        return entry["files"]
    dataset = find_dataset(wanted.name, begun or revision or wanted.commit, list(wanted.patterns), api)
    extracted = sum(size for path, size in dataset.files.items() if path.endswith(".zip"))  # images hardly shrink
    left = sum(dataset.missing(unfinished).values()) + extracted
    say(require_space(folder, left, f"{wanted.name} to download{' and extract' if extracted else ''}"))
    record[name] = {"repository": wanted.name, "revision": dataset.commit}
    write_json(record_file, record)  # first: an interrupted fetch keeps this commit
    dataset.download(unfinished, api)
    record[name]["files"] = dataset.files
    write_json(record_file, record)
    return dataset.files


def _finish_pretrain(folder: Path, unfinished: Path, remove_zip: bool) -> None:
    archive = folder / "images.zip"
    if (unfinished / archive.name).exists():
        os.replace(unfinished / archive.name, archive)
    if not (folder / "stage1.json").exists():
        say(f"extracting {archive}")
        with disk_errors_named(folder / "images"), ZipFile(archive) as zipped:
            zipped.extractall(folder / "images")  # each file inside the folder; no links
        os.replace(unfinished / "blip_laion_cc_sbu_558k.json", folder / "stage1.json")
    if remove_zip:
        archive.unlink(missing_ok=True)


def _unfinished(folder: Path, name: str) -> Path:
    return folder / f".{name}"
