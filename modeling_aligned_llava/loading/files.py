"""Atomic writes of results. A file whose content would not change is not written."""

import json
from pathlib import Path
from typing import Any

from modeling_aligned_llava.loading.build_once import replacing


def write_text(path: Path, text: str) -> None:
    """Write atomically, unless the file has this content already."""
    content = text.encode()  # bytes: read_text would turn a carriage return into a newline
    if path.is_file() and path.read_bytes() == content:
        return
    with replacing(path) as unfinished:
        unfinished.write_bytes(content)


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
