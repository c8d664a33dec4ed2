"""Checks that a data root has what the benchmarks need: columns, row counts, recorded revisions."""

from pathlib import Path

import pyarrow.parquet

from eval.data import mirror
from eval.data.benchmarks import Benchmark
from eval.data.fetch import REVISIONS, datasets
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json


def downloaded_revision(folder: Path) -> str | None:
    """The commit that `hf download --local-dir` recorded beside the files; None without such a record."""
    notes = sorted(folder.glob(".cache/huggingface/download/**/*.metadata"))
    commits = {note.read_text(encoding="utf-8").split("\n", 1)[0] for note in notes}
    return "several" if len(commits) > 1 else next(iter(commits), None)


def columns(root: Path, benchmark: Benchmark) -> set[str]:
    """Columns of the scored split, read from its first file."""
    return set(pyarrow.parquet.read_schema(mirror.split_files(root, benchmark)[0]).names)


def problem(root: Path, benchmark: Benchmark, hub_rows: bool) -> str | None:
    """Why the benchmark cannot be scored, in one line; None if it can.

    Args:
        hub_rows: require as many rows as the Hub has.
    """
    try:
        rows = mirror.count_rows(root, benchmark)
    except UserError as error:
        return str(error).removeprefix(f"benchmark {benchmark.key}: ")
    if (linked := mirror.linked_image(root, benchmark)) is not None:
        return linked
    missing = set(benchmark.columns) - columns(root, benchmark)
    if missing:
        return f"no column {', '.join(sorted(missing))}"
    on_hub = benchmark.hub_rows or benchmark.num_questions
    if hub_rows and rows != on_hub:
        return f"{rows} rows of {benchmark.split}, expected {on_hub}"
    recorded = (read_json(root / REVISIONS) or {}).get(benchmark.folder)
    found = downloaded_revision(root / benchmark.folder)
    if recorded and found and recorded != found:
        return f"revision {found[:8]}, but {root / REVISIONS} has {recorded[:8]}"
    return None


def check(root: Path, hub_rows: bool = True) -> dict[str, str | None]:
    """Benchmark key -> its problem, or None.

    Raises:
        UserError: there is no such folder.
    """
    if not root.is_dir():
        raise UserError(f"{root}: no such folder")
    return {benchmark.key: problem(root, benchmark, hub_rows) for benchmark in datasets()}
