"""What every benchmark writes beside its numbers (date, versions, hardware), and how: one JSON file and one line."""

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from eval.score.results import made_by
from modeling_aligned_llava.loading.files import write_json


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
