"""`run.json`: settings, models, data, versions and hardware, to repeat a run and to explain why two runs differ."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from modeling_aligned_llava.harness.provenance import versions


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


def record(settings: dict[str, Any], models: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """The content of run.json, without time stamps so that a repeated run does not change the file."""
    return {
        "settings": settings,
        "models": models,
        "data": data,
        "versions": {"python": platform.python_version()} | versions(PACKAGES),
        "code": _commit(),
        "hardware": {"cpu": _processor(), "cores": os.cpu_count(), "gpus": _gpus(), "system": platform.system()},
    }
