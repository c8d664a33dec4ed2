"""Downloads the datasets of the benchmarks to `ROOT/org/name/`, where the stock tasks find them offline.

The first fetch takes the revisions of `benchmarks.py`, and the newest of the other datasets. `ROOT/revisions.json`
records the commit of each; a later fetch gets the commits that it names.
"""

from pathlib import Path

from huggingface_hub import HfApi

from eval.data.benchmarks import BY_KEY, Benchmark
from modeling_aligned_llava.loading.build_once import exclusive_lock
from modeling_aligned_llava.loading.disk_errors import require_space
from modeling_aligned_llava.loading.files import read_json, write_json
from modeling_aligned_llava.loading.hub import find_dataset


REVISIONS = "revisions.json"


def datasets() -> list[Benchmark]:
    """The first benchmark of each dataset."""
    return [b for b in BY_KEY.values() if b is next(first for first in BY_KEY.values() if first.folder == b.folder)]


def fetch(root: Path, api: HfApi) -> dict[str, str]:
    """Download the files that are missing and return the commit of each dataset.

    Raises:
        UserError: a dataset cannot be downloaded, the disk is too small for it, or another process is fetching.
    """
    root.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(root / REVISIONS, f"another process is fetching to {root}"):
        revisions: dict[str, str] = read_json(root / REVISIONS) or {}
        for benchmark in datasets():
            name = benchmark.folder
            dataset = find_dataset(name, revisions.get(name, benchmark.revision), ["README.md", "*.parquet"], api)
            if name not in revisions:
                revisions[name] = dataset.commit
                write_json(root / REVISIONS, revisions)  # first: an interrupted fetch keeps this commit
            require_space(root, sum(dataset.missing(root / name).values()), name)
            dataset.download(root / name, api)
    return revisions
