"""Atomic writes of results. A file whose content would not change is not written."""

import json
import os
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write atomically, unless the file has this content already."""
    content = text.encode()  # bytes: read_text would turn a carriage return into a newline
    if path.is_file() and path.read_bytes() == content:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def write_json(path: Path, content: Any, indent: int | None = 1) -> None:
    write_text(path, json.dumps(content, indent=indent, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None if it does not exist."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None
