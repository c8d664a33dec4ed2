"""What the benchmarks share: their options, what stands beside their numbers, and how they are written."""

import argparse
import json
import os
import resource
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from eval.score.results import made_by
from modeling_aligned_llava.loading.files import write_json


def options(program: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    parser = argparse.ArgumentParser(
        prog=f"python -m {program}", description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="JSON file to write")
    return parser


def peak_memory(device: str) -> int:
    """Bytes: of the GPU, or of this process."""
    if device == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def environment() -> dict[str, Any]:
    """Date, versions, commit and hardware of this run."""
    where = made_by()
    busy = {"threads": torch.get_num_threads(), "load_average": os.getloadavg()[0]}  # of the last minute
    return {"date": datetime.now(UTC).isoformat(timespec="seconds"), **where, "hardware": where["hardware"] | busy}


def write(result: dict[str, Any], out: Path | None) -> None:
    """Print `result` as one line, and write it to `out` if given (whole or not at all)."""
    if out is not None:
        write_json(out, result, indent=2)
    print(json.dumps(result))  # noqa: T201
