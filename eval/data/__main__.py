"""The nine datasets: `python -m eval.data fetch ROOT` downloads them, `check ROOT` reports what is wrong."""

import argparse
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from rich.console import Console
from rich.table import Table

from eval.data.check import check
from eval.data.fetch import DATASETS, fetch
from modeling_aligned_llava.errors import UserError, run_main


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.data", description=__doc__.split("\n\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("fetch", "download all nine, resumable"), ("check", "verify columns and row counts")):
        command = commands.add_parser(name, help=text)
        command.add_argument("root", type=Path, help="folder of the mirrors")
    commands.choices["check"].add_argument(
        "--any-size", action="store_true", help="accept other row counts than the Hub's (tinyworld, excerpts)"
    )
    args = parser.parse_args()
    if args.command == "fetch":
        fetch(args.root, HfApi())
    found = check(args.root, hub_rows=args.command == "fetch" or not args.any_size)
    table = Table("benchmark", "folder", "state")
    for benchmark in DATASETS:
        table.add_row(benchmark.title, benchmark.folder, found[benchmark.key] or "ok")
    Console().print(table)
    wrong: list[Any] = [f"{key} ({text})" for key, text in found.items() if text]
    if wrong:
        raise UserError(f"{len(wrong)} of {len(found)} benchmarks cannot be scored: {'; '.join(wrong)}")


if __name__ == "__main__":
    run_main(main)
