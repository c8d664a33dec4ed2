"""The datasets of the benchmarks: `fetch ROOT` downloads them, `check ROOT` reports what is missing or wrong.

They lie in `ROOT/org/name/`, where the stock tasks find them offline. The first fetch takes the revisions of
`benchmarks.py`, and the newest of the other datasets. `ROOT/revisions.json` records the commit of each; a later fetch
gets the commits that it names.
"""

import argparse
from pathlib import Path

from huggingface_hub import HfApi
from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import datasets
from eval.data.mirror import REVISIONS, check
from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.files import exclusive_lock, read_json, require_space, write_json
from modeling_aligned_llava.loading.hub import find_dataset


def fetch(root: Path, api: HfApi) -> None:
    """Download the files that are missing.

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


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.data", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("fetch", "download what is missing"), ("check", "verify columns and row counts")):
        command = commands.add_parser(name, help=text)
        command.add_argument("root", type=Path, help="folder of the datasets, ROOT/org/name/")
    commands.choices["check"].add_argument(
        "--any-size", action="store_true", help="accept row counts that differ from the Hub's (tinyworld, excerpts)"
    )
    args = parser.parse_args()
    if args.command == "fetch":
        fetch(args.root, HfApi())
    problems = check(args.root, hub_rows=args.command == "fetch" or not args.any_size)
    table = Table("benchmark", "folder", "state")
    for benchmark in datasets():
        table.add_row(benchmark.title, benchmark.folder, problems[benchmark.key] or "ok")
    Console().print(table)
    broken = [f"{key} ({problem})" for key, problem in problems.items() if problem]
    if broken:
        raise UserError(f"{len(broken)} of {len(problems)} benchmarks cannot be scored: {'; '.join(broken)}")


if __name__ == "__main__":
    run_main(main)
