"""Downloads the datasets of the benchmarks as `ROOT/org/name/`, each at a recorded commit."""

from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

from eval.data.benchmarks import BY_KEY
from eval.run.files import read_json, write_json
from modeling_aligned_llava.errors import UserError


REVISIONS = "revisions.json"


DATASETS = list({b.folder: b for b in reversed(BY_KEY.values())}.values())[::-1]  # the first benchmark of each


def fetch(root: Path, api: HfApi) -> dict[str, str]:
    """Download what is not there yet; killed and started again, it goes on. Returns the commit of each dataset.

    Raises:
        UserError: the Hub does not answer.
    """
    root.mkdir(parents=True, exist_ok=True)
    revisions: dict[str, str] = read_json(root / REVISIONS) or {}
    for benchmark in DATASETS:
        name = benchmark.folder
        try:
            if name not in revisions:
                commit = api.dataset_info(name).sha
                assert commit is not None
                revisions[name] = commit
                write_json(root / REVISIONS, revisions)  # before the files: an interrupted fetch keeps to it
            snapshot_download(
                name,
                repo_type="dataset",
                revision=revisions[name],
                local_dir=root / name,
                allow_patterns=["README.md", "*.parquet"],
                endpoint=api.endpoint,
            )
        except Exception as error:  # whatever the Hub's client raises, its HTTP library's errors among it
            raise UserError(
                f"cannot fetch {name}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            ) from error
    return revisions
