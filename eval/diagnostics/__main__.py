"""`python -m eval.diagnostics COMMAND ...`: those of `aligned-llava`, and `--data` for images."""

from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.command_line import run_command
from modeling_aligned_llava.errors import run_main


def main() -> None:
    run_command("python -m eval.diagnostics", _sample)


def _sample(root: Path, limit: int) -> list[Any]:
    from eval.data.image_sample import in_benchmarks  # here: parquet and pictures take a second to import

    return in_benchmarks(root, limit)


if __name__ == "__main__":
    run_main(main)
