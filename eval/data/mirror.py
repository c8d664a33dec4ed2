"""A data root: one folder per dataset, `ROOT/org/name/`, as `hf download --repo-type dataset --local-dir` writes it.

Rows are counted in the files themselves, not through the harness or the datasets cache, so that results on stale or
half-downloaded data are noticed.
"""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets.data_files import sanitize_patterns
from huggingface_hub import metadata_load

from eval.data.benchmarks import Benchmark
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import read_json
from modeling_aligned_llava.loading.fingerprint import hash_files


REVISIONS = "revisions.json"  # of a data root: the commit of each dataset


def _folder(root: Path, benchmark: Benchmark) -> Path:
    folder = root / benchmark.folder
    if not folder.is_dir():
        raise UserError(f"benchmark {benchmark.key}: no folder {folder}")
    return folder


def split_files(root: Path, benchmark: Benchmark) -> list[Path]:
    """Parquet files of the scored split, over all configurations that count.

    Raises:
        UserError: no such folder, configuration or split, or no parquet files in it.
    """
    folder = _folder(root, benchmark)
    card = folder / "README.md"
    header = metadata_load(card) if card.is_file() else None
    whole = [{"config_name": "default", "data_files": {benchmark.split: f"**/*{benchmark.split}*.parquet"}}]
    configs: list[dict[str, Any]] = (header or {}).get("configs") or whole
    if benchmark.config == "*":
        configs = [config for config in configs if config["config_name"] != "all"]  # cais/mmlu: all subjects again
    elif benchmark.config is not None:
        configs = [config for config in configs if config["config_name"] == benchmark.config]
    by_split = [sanitize_patterns(config.get("data_files", [])) for config in configs]
    patterns = [pattern for splits in by_split for pattern in splits.get(benchmark.split, [])]
    files = [path for pattern in patterns for path in sorted(folder.glob(pattern))]
    if not files:
        wanted = f"split {benchmark.split}" + (f" of {benchmark.config}" if benchmark.config else "")
        raise UserError(f"benchmark {benchmark.key}: {folder} has no parquet rows of {wanted}")
    return files


def count_rows(root: Path, benchmark: Benchmark, limit: int | None = None) -> int:
    """Rows of the scored split, over all configurations that count; at most the first `limit` of each.

    Raises:
        UserError: as in `split_files`, or a file is not readable.
    """
    rows: Counter[Path] = Counter()
    for path in split_files(root, benchmark):
        try:
            rows[path.parent] += pyarrow.parquet.read_metadata(path).num_rows
        except (OSError, pyarrow.ArrowException) as error:
            raise UserError(f"benchmark {benchmark.key}: {path} is not readable parquet ({error})") from None
    parts = rows.values() if benchmark.config == "*" else [rows.total()]  # a harness limits every configuration
    return sum(parts) if limit is None else sum(min(limit, part) for part in parts)


def linked_image(root: Path, benchmark: Benchmark) -> str | None:
    """The first image of the scored split that its row names instead of holding it; None if there is none.

    `datasets` would open that file, which may be any on this machine.
    """
    for file in split_files(root, benchmark):
        reader = pyarrow.parquet.ParquetFile(file)
        for group in range(reader.num_row_groups):
            chunks = reader.metadata.row_group(group)
            for chunk in map(chunks.column, range(chunks.num_columns)):
                name, _, part = chunk.path_in_schema.partition(".")
                held = chunk.statistics is not None and chunk.statistics.null_count == 0
                if part != "bytes" or held:
                    continue
                for image in reader.read_row_group(group, [name])[name]:
                    if image.is_valid and not image["bytes"].is_valid and image["path"].is_valid:
                        return f"{file.name} names the image file {image['path'].as_py()!r} instead of holding it"
    return None


def subtask_names(root: Path, benchmark: Benchmark) -> list[str]:
    """The part of the benchmark that each row of the split belongs to, in the harness's order.

    Empty if the files lack the column, which the score does not need.
    """
    names: list[str] = []
    for path in split_files(root, benchmark):
        if benchmark.subtasks not in pyarrow.parquet.read_schema(path).names:
            return []
        names += map(str, pyarrow.parquet.read_table(path, columns=[benchmark.subtasks])[0].to_pylist())
    return names


def fingerprint(root: Path, benchmark: Benchmark) -> str:
    """sha256 of the benchmark's folder, without hidden files (the download's own records)."""
    folder = _folder(root, benchmark)
    files = (path for path in folder.rglob("*") if path.is_file())
    return hash_files(
        (path for path in files if not any(p.startswith(".") for p in path.relative_to(folder).parts)), folder
    )


def _downloaded_revision(folder: Path) -> str | None:
    """The commit that `hf download --local-dir` recorded beside the files; None without such a record."""
    notes = sorted(folder.glob(".cache/huggingface/download/**/*.metadata"))
    commits = {note.read_text(encoding="utf-8").split("\n", 1)[0] for note in notes}
    return "several" if len(commits) > 1 else next(iter(commits), None)


def problem(root: Path, benchmark: Benchmark, hub_rows: bool) -> str | None:
    """Why the benchmark cannot be scored, in one line; None if it can.

    Args:
        hub_rows: require as many rows as the Hub has.
    """
    try:
        rows = count_rows(root, benchmark)
    except UserError as error:
        return str(error).removeprefix(f"benchmark {benchmark.key}: ")
    if (linked := linked_image(root, benchmark)) is not None:
        return linked
    missing = set(benchmark.columns) - set(pyarrow.parquet.read_schema(split_files(root, benchmark)[0]).names)
    if missing:
        return f"no column {', '.join(sorted(missing))}"
    on_hub = benchmark.hub_rows or benchmark.num_questions
    if hub_rows and rows != on_hub:
        return f"{rows} rows of {benchmark.split}, expected {on_hub}"
    recorded = (read_json(root / REVISIONS) or {}).get(benchmark.folder)
    downloaded = _downloaded_revision(root / benchmark.folder)
    if recorded and downloaded and recorded != downloaded:
        return f"revision {downloaded[:8]}, but {root / REVISIONS} has {recorded[:8]}"
    return None
