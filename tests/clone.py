"""A clone of this repository as it is on the disk, for tests that run its commands in a folder of their own."""

import os
import shutil
import subprocess
from pathlib import Path

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
