"""Downloads the datasets of the benchmarks to `ROOT/org/name/`, where the stock tasks find them offline.

`ROOT/revisions.json` records the commit of each; a later fetch gets the same commits.
"""

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

from eval.data.benchmarks import BY_KEY, Benchmark
from eval.run.files import read_json, write_json
from modeling_aligned_llava.errors import UserError


REVISIONS = "revisions.json"


def datasets() -> list[Benchmark]:
    """The first benchmark of each dataset."""
    return [b for b in BY_KEY.values() if b is next(first for first in BY_KEY.values() if first.folder == b.folder)]


def fetch(root: Path, api: HfApi) -> dict[str, str]:
    """Download what is missing and return the commit of each dataset. An interrupted download resumes.

    Raises:
        UserError: a dataset cannot be downloaded.
    """
    root.mkdir(parents=True, exist_ok=True)
    revisions: dict[str, str] = read_json(root / REVISIONS) or {}
    for benchmark in datasets():
        name = benchmark.folder
        try:
            if name not in revisions:
                commit = api.dataset_info(name).sha
                assert commit is not None
                revisions[name] = commit
                write_json(root / REVISIONS, revisions)  # first: an interrupted fetch keeps this commit
            snapshot_download(
                name,
                repo_type="dataset",
                revision=revisions[name],
                local_dir=root / name,
                allow_patterns=["README.md", "*.parquet"],
                endpoint=api.endpoint,
            )
        except Exception as error:  # anything the Hub's client raises, including errors of its HTTP library
            raise UserError(
                f"cannot fetch {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error
    return revisions
