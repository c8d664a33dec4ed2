"""`run.json`: settings, models, data, versions and hardware, to repeat a run and to explain why two runs differ."""

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from modeling_aligned_llava.loading.fingerprint import versions


PACKAGES = ("modeling-aligned-llava", "torch", "transformers", "lmms-eval", "lm-eval", "datasets", "trl", "accelerate")


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    names = [line for line in info.read_text().splitlines() if "model name" in line] if info.is_file() else []
    return names[0].split(":", 1)[1].strip() if names else platform.processor()


def _gpus() -> list[str]:
    try:
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return []
    return output.stdout.splitlines() if output.returncode == 0 else []


def _commit() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)  # noqa: S603
    except OSError:
        return None
    return output.stdout.strip() or None


@functools.cache
def made_by() -> dict[str, Any]:
    """What runs here and now: package versions, commit and hardware."""
    return {
        "versions": {"python": platform.python_version()} | versions(PACKAGES),
        "code": _commit(),
        "hardware": {"cpu": _processor(), "cores": os.cpu_count(), "gpus": _gpus(), "system": platform.system()},
    }


def combined(values: list[Any]) -> Any:
    """What several records agree on, entry by entry; where they differ, all of it."""
    if all(isinstance(value, dict) for value in values):
        names = dict.fromkeys(name for value in values for name in value)
        return {name: combined([value.get(name) for value in values]) for name in names}
    if all(value == values[0] for value in values):
        return values[0]
    if all(isinstance(value, list) for value in values):
        return list(dict.fromkeys(entry for value in values for entry in value))
    return " and ".join(dict.fromkeys(map(str, values)))


def record(
    settings: dict[str, Any], models: dict[str, Any], data: dict[str, Any], makers: list[dict[str, Any]]
) -> dict[str, Any]:
    """The content of run.json, without time stamps so that a repeated run does not change the file.

    Args:
        makers: `made_by` of each result.
    """
    return {"settings": settings, "models": models, "data": data} | combined(makers or [made_by()])
