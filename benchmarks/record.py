"""What every benchmark writes beside its numbers (date, versions, hardware), and how: one JSON file and one line."""

import json
import os
import platform
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers

from modeling_aligned_llava.loading.build_once import replacing


def environment(*packages: str) -> dict[str, Any]:
    """Date, hardware and versions of this run, those of further `packages` among them."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        | {package: metadata.version(package) for package in packages},
        "hardware": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "load_average": os.getloadavg()[0],  # of the last minute: how busy others kept the machine
            "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        },
    }


def write(result: dict[str, Any], out: Path | None) -> None:
    """Print `result` as one line, and write it to `out` if given (whole or not at all)."""
    if out is not None:
        with replacing(out) as unfinished:
            unfinished.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(json.dumps(result))  # noqa: T201


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
