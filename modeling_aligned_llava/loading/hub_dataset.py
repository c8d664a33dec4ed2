"""Download the files of a Hub dataset at one commit: resumable, within the free disk, checked against their sha256."""

import hashlib
import os
import shutil
import sys
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, hf_hub_url, snapshot_download
from huggingface_hub.file_download import http_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import build_hf_headers, enable_progress_bars
from tqdm import tqdm

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.hub_retries import Damaged, with_retries


LARGE = 1 << 30  # bytes; `snapshot_download` starts a file again after an interruption, so larger ones are appended to
_BLOCK = 1 << 24


@dataclass(frozen=True)
class HubFile:
    """A file of a dataset: its size in bytes and, if the Hub stores it as a large file, its sha256."""

    size: int
    sha256: str | None


@dataclass(frozen=True)
class HubDataset:
    """The files of a dataset at one commit, by path."""

    name: str
    commit: str
    files: dict[str, HubFile]

    def missing_bytes(self, folder: Path) -> int:
        """Bytes left to download to `folder`."""
        return sum(file.size - _size(_unfinished(folder / path)) for path, file in self._missing(folder).items())

    def download(self, folder: Path, api: HfApi) -> None:
        """Download what is missing to `folder`, and compare every file with its sha256. Partial files over `LARGE`
        are continued; others start again.

        Raises:
            UserError: the Hub refuses or does not answer, or a file stays damaged.
        """
        if sys.stderr.isatty():
            enable_progress_bars()  # `quiet` has disabled them
        with_retries(lambda: self._download(folder, api), f"cannot fetch {self.name}")

    def _download(self, folder: Path, api: HfApi) -> None:
        missing = self._missing(folder)
        large = {path: file for path, file in missing.items() if file.size > LARGE}
        if small := missing.keys() - large.keys():
            snapshot_download(
                self.name,
                repo_type="dataset",
                revision=self.commit,
                local_dir=folder,
                allow_patterns=sorted(small),
                endpoint=api.endpoint,
                token=api.token,
            )
        for path, file in large.items():
            self._continue(folder / path, path, file.size, api)
        if absent := self._missing(folder):  # `snapshot_download` only warns if the Hub cannot be reached
            raise Damaged(f"{folder / next(iter(absent))} has not arrived in full")
        self._check(folder)

    def _check(self, folder: Path) -> None:
        """Remove a file whose sha256 is wrong, so that the next attempt replaces it."""
        total = sum(file.size for file in self.files.values())
        with tqdm(total=total, unit="B", unit_scale=True, desc="checking sha256", disable=None) as bar:
            for path, file in self.files.items():
                digest = hashlib.sha256()
                with (folder / path).open("rb") as content:
                    while block := content.read(_BLOCK):
                        digest.update(block)
                        bar.update(len(block))
                if file.sha256 is not None and digest.hexdigest() != file.sha256:
                    (folder / path).unlink()
                    raise Damaged(f"{folder / path} is damaged: its sha256 is not the Hub's")

    def _missing(self, folder: Path) -> dict[str, HubFile]:
        return {path: file for path, file in self.files.items() if _size(folder / path) != file.size}

    def _continue(self, target: Path, path: str, size: int, api: HfApi) -> None:
        unfinished = _unfinished(target)
        unfinished.parent.mkdir(parents=True, exist_ok=True)
        url = hf_hub_url(self.name, path, repo_type="dataset", revision=self.commit, endpoint=api.endpoint)
        if _size(unfinished) > size:
            unfinished.unlink()
        with unfinished.open("ab") as file:
            headers = build_hf_headers(token=api.token)
            http_get(url, file, resume_size=file.tell(), headers=headers, expected_size=size, displayed_filename=path)
        os.replace(unfinished, target)


def find_dataset(name: str, revision: str | None, patterns: list[str], api: HfApi) -> HubDataset:
    """The files of a dataset that match one of the patterns, at a commit, branch or tag (default: `main`).

    Raises:
        UserError: the Hub has no such dataset or revision, refuses or does not answer, or no file matches.
    """

    def find() -> HubDataset:
        commit = api.dataset_info(name, revision=revision).sha
        assert commit is not None
        tree = api.list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset")
        files = {
            file.path: HubFile(file.size, file.lfs.sha256 if file.lfs else None)
            for file in tree
            if isinstance(file, RepoFile) and any(fnmatch(file.path, pattern) for pattern in patterns)
        }
        if not files:
            raise UserError(f"{name} has no {' or '.join(patterns)} at {commit}")
        return HubDataset(name, commit, files)

    return with_retries(find, f"cannot fetch {name}")


def require_space(folder: Path, needed: int, what: str) -> str:
    """`what: N GB, M GB free in FOLDER`, if that fits.

    Args:
        folder: must exist.
        needed: bytes.
        what: what needs them.

    Raises:
        UserError: the disk has less.
    """
    free = shutil.disk_usage(folder).free
    text = f"{what}: {_gigabytes(needed)}, {_gigabytes(free)} free in {folder}"
    if needed > free:
        raise UserError(f"{text}; free {_gigabytes(needed - free)} or choose another disk")
    return text


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _unfinished(path: Path) -> Path:
    return path.with_name(f".{path.name}.unfinished")
