"""Files from the Hub: those of a dataset at one commit, and one line for whatever goes wrong."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import enable_progress_bars

from modeling_aligned_llava.errors import UserError


@contextmanager
def hub_errors_named(what: str) -> Iterator[None]:
    """Turn whatever the Hub's client raises into one line that begins with `what`.

    Raises:
        UserError: the Hub refuses, does not answer, or cannot be reached.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # including errors of its HTTP library
        # Without the queries of addresses: those of signed ones are keys.
        text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", " ".join(str(error).split()))
        raise UserError(f"{what}: {type(error).__name__}: {text[:300]}") from error


@dataclass(frozen=True)
class HubDataset:
    """The files of a dataset at one commit: size in bytes by path."""

    name: str
    commit: str
    files: dict[str, int]

    def missing(self, folder: Path) -> dict[str, int]:
        """The files that `folder` lacks, or has with another size."""
        there = {path: folder / path for path in self.files if (folder / path).is_file()}
        return {p: size for p, size in self.files.items() if p not in there or there[p].stat().st_size != size}

    def download(self, folder: Path, api: HfApi) -> None:
        """Download what is missing to `folder`. The Hub's client tries again, and keeps only whole files.

        Raises:
            UserError: the Hub refuses or does not answer, or a file has not the size that the Hub names.
        """
        if not (missing := self.missing(folder)):
            return
        if sys.stderr.isatty():
            enable_progress_bars()  # `quiet` has disabled them
        with hub_errors_named(f"cannot fetch {self.name}"):
            snapshot_download(
                self.name,
                repo_type="dataset",
                revision=self.commit,
                local_dir=folder,
                allow_patterns=sorted(missing),
                endpoint=api.endpoint,
                token=api.token,
            )
        if missing := self.missing(folder):  # the client only warns if the Hub cannot be reached
            path = folder / next(iter(missing))
            raise UserError(f"cannot fetch {self.name}: {path} has not arrived in full; start again")


def find_dataset(name: str, revision: str | None, patterns: list[str], api: HfApi) -> HubDataset:
    """The files of a dataset that match one of the patterns, at a commit, branch or tag (default: `main`).

    Raises:
        UserError: the Hub has no such dataset or revision, refuses or does not answer, or no file matches.
    """
    with hub_errors_named(f"cannot fetch {name}"):
        commit = api.dataset_info(name, revision=revision).sha
        assert commit is not None
        tree = list(api.list_repo_tree(name, recursive=True, revision=commit, repo_type="dataset"))
    files = {entry.path: entry.size for entry in tree if isinstance(entry, RepoFile)}
    wanted = {path: size for path, size in files.items() if any(fnmatch(path, pattern) for pattern in patterns)}
    if not wanted:
        raise UserError(f"{name} has no {' or '.join(patterns)} at {commit}")
    return HubDataset(name, commit, wanted)
