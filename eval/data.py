"""The nine datasets: `python -m eval.data fetch ROOT` brings them, `check ROOT` says what is missing or wrong.

They land as `ROOT/org/name/`, where the stock tasks find them without the network. `ROOT/revisions.json` holds the
commit of each; a later fetch brings the same ones, and a folder of another revision is refused.
"""

import argparse
from pathlib import Path
from typing import Any

import pyarrow.parquet
from huggingface_hub import HfApi, snapshot_download
from rich.console import Console
from rich.table import Table

from eval.suite import mirror
from eval.suite.benchmarks import BY_KEY, Benchmark
from eval.suite.files import read_json, write_json
from modeling_aligned_llava.errors import UserError, run_main


REVISIONS = "revisions.json"
# What the stock tasks read of a row, and how many rows the split they score has on the Hub.
COLUMNS = {
    "lmms-lab-encoder/MMBench": {
        "index",
        "question",
        "hint",
        "answer",
        "A",
        "B",
        "C",
        "D",
        "category",
        "L2-category",
        "image",
    },
    "Lin-Chen/MMStar": {"index", "question", "image", "answer", "category", "l2_category"},
    "lmms-lab-encoder/POPE": {"question_id", "question", "answer", "image"},
    "doolayer/SEED-Bench-2-Plus": {
        "question",
        "choice_A",
        "choice_B",
        "choice_C",
        "choice_D",
        "answer",
        "question_image_type",
    },
    "echo840/OCRBench": {"dataset", "question", "question_type", "answer", "image"},
    "lmms-lab-encoder/ScienceQA": {"image", "question", "choices", "answer", "hint"},
    "lmms-lab-encoder/ai2d": {"question", "options", "answer", "image"},
    "Rowan/hellaswag": {"activity_label", "ctx_a", "ctx_b", "endings", "label"},
    "cais/mmlu": {"question", "choices", "answer"},
}
DATASETS = list({b.folder: b for b in reversed(BY_KEY.values())}.values())[::-1]  # the first benchmark of each
HUB_ROWS = {b.folder: b.paper_n for b in DATASETS} | {"lmms-lab-encoder/MMBench": 4329}  # rotations are rows


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


def downloaded_revision(folder: Path) -> str | None:
    """The commit that `hf download --local-dir` noted beside the files; None without such a note."""
    notes = sorted(folder.glob(".cache/huggingface/download/**/*.metadata"))
    commits = {note.read_text(encoding="utf-8").split("\n", 1)[0] for note in notes}
    return "several" if len(commits) > 1 else next(iter(commits), None)


def columns(root: Path, benchmark: Benchmark) -> set[str]:
    """Columns of the split that is scored, of the first of its files."""
    return set(pyarrow.parquet.read_schema(mirror.split_files(root, benchmark)[0]).names)


def problem(root: Path, benchmark: Benchmark, hub_rows: bool) -> str | None:
    """What keeps the benchmark from being scored, in one line; None if nothing does."""
    try:
        rows = mirror.count_rows(root, benchmark)
    except UserError as error:
        return str(error).removeprefix(f"benchmark {benchmark.key}: ")
    missing = COLUMNS[benchmark.folder] - columns(root, benchmark)
    if missing:
        return f"no column {', '.join(sorted(missing))}"
    if hub_rows and rows != HUB_ROWS[benchmark.folder]:
        return f"{rows} rows of {benchmark.split}, expected {HUB_ROWS[benchmark.folder]}"
    wanted = (read_json(root / REVISIONS) or {}).get(benchmark.folder)
    found = downloaded_revision(root / benchmark.folder)
    if wanted and found and wanted != found:
        return f"revision {found[:8]}, but {root / REVISIONS} says {wanted[:8]}"
    return None


def check(root: Path, hub_rows: bool = True) -> dict[str, str | None]:
    """Benchmark -> its problem, or None.

    Raises:
        UserError: there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    return {benchmark.key: problem(root, benchmark, hub_rows) for benchmark in DATASETS}


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
