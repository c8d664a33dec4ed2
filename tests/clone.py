"""Copies: of this repository as it is on the disk, and of a checkpoint with changes."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests import REPOSITORY


def clone_repository(folder: Path) -> None:
    """Clone to `folder`, with what is not committed yet and with this repository's virtual environment."""
    subprocess.run(["git", "clone", "--quiet", str(REPOSITORY), str(folder)], check=True)  # noqa: S603, S607
    changed = ["git", "ls-files", "--modified", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(changed, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout  # noqa: S603
    for name in filter(None, names.split("\0")):
        if (REPOSITORY / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, folder / name)
    (folder / ".venv").symlink_to((REPOSITORY / ".venv").resolve())
    for name in ("pyproject.toml", "constraints.txt"):
        os.utime(folder / name, (0, 0))  # make compares times, and would install again


def changed_copy(source: Path, target: Path, file: str = "config.json", **entries: Any) -> Path:
    """A copy of a checkpoint at `target`, with these entries in one of its JSON files."""
    shutil.copytree(source, target)
    content = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps(content | entries))
    return target
