"""The datasets of the benchmarks: `fetch ROOT` downloads them, and reports what is missing or wrong.

They lie in `ROOT/org/name/`, where the stock tasks find them offline. The first fetch takes the revisions of
`benchmarks.py`, and the newest of the other datasets. `ROOT/revisions.json` records the commit of each; a later fetch
gets the commits that it names.
"""

import argparse
import sys
from pathlib import Path

from huggingface_hub import HfApi
from huggingface_hub.utils import enable_progress_bars
from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import datasets
from eval.data.mirror import REVISIONS, problem
from modeling_aligned_llava.errors import UserError, errors_named, run_main
from modeling_aligned_llava.loading.files import exclusive_lock, read_json, write_json


def fetch(root: Path, api: HfApi) -> None:
    """Download the files that are missing. The Hub's client tries again, and keeps only whole files.

    Raises:
        UserError: a dataset cannot be downloaded, or another process is fetching.
    """
    root.mkdir(parents=True, exist_ok=True)
    if sys.stderr.isatty():
        enable_progress_bars()  # `quiet` has disabled them
    with exclusive_lock(root / REVISIONS, f"another process is fetching to {root}"):
        revisions: dict[str, str] = read_json(root / REVISIONS) or {}
        for benchmark in datasets():
            name = benchmark.folder
            with errors_named(f"cannot fetch {name}"):
                # Asked even where it is known: a download only warns if the Hub cannot be reached.
                commit = api.dataset_info(name, revision=revisions.get(name, benchmark.revision)).sha
                assert commit is not None
                if name not in revisions:
                    revisions[name] = commit
                    write_json(root / REVISIONS, revisions)  # first: an interrupted fetch keeps this commit
                api.snapshot_download(
                    name,
                    repo_type="dataset",
                    revision=commit,
                    local_dir=root / name,
                    allow_patterns=["README.md", "*.parquet"],
                )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.data", description=__doc__.split("\n\n")[0])
    parser.add_argument("command", choices=["fetch"], help="download what is missing; verify columns and row counts")
    parser.add_argument("root", type=Path, help="folder of the datasets, ROOT/org/name/")
    root = parser.parse_args().root
    fetch(root, HfApi())
    table, broken = Table("benchmark", "folder", "state"), []
    for benchmark in datasets():
        reason = problem(root, benchmark, hub_rows=True)
        table.add_row(benchmark.title, benchmark.folder, reason or "ok")
        if reason:
            broken.append(f"{benchmark.key} ({reason})")
    Console().print(table)
    if broken:
        raise UserError(f"{len(broken)} of {len(datasets())} benchmarks cannot be scored: {'; '.join(broken)}")


if __name__ == "__main__":
    run_main(main)
