"""The datasets of the benchmarks: `fetch ROOT` downloads them, `check ROOT` reports what is missing or wrong."""

import argparse
from pathlib import Path

from huggingface_hub import HfApi
from rich.console import Console
from rich.table import Table

from eval.data.check import check
from eval.data.fetch import datasets, fetch
from modeling_aligned_llava.errors import UserError, run_main


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
    broken = [f"{key} ({text})" for key, text in problems.items() if text]
    if broken:
        raise UserError(f"{len(broken)} of {len(problems)} benchmarks cannot be scored: {'; '.join(broken)}")


if __name__ == "__main__":
    run_main(main)
