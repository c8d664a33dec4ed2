"""The nine datasets: `python -m eval.data fetch ROOT` brings them, `check ROOT` says what is missing or wrong.

They land as `ROOT/org/name/`, where the stock tasks find them without the network. `ROOT/revisions.json` holds the
commit of each; a later fetch brings the same ones, and a folder of another revision is refused.
"""

from pathlib import Path

import pyarrow.parquet

from eval.data import mirror
from eval.data.benchmarks import Benchmark
from eval.data.fetch import DATASETS, REVISIONS
from eval.run.files import read_json
from modeling_aligned_llava.errors import UserError


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
HUB_ROWS = {b.folder: b.paper_n for b in DATASETS} | {"lmms-lab-encoder/MMBench": 4329}  # rotations are rows


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
