"""What produces an answer besides its inputs: package versions, this package's answering code, the kind of device."""

import ast
import functools
import hashlib
import json
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

from modeling_aligned_llava.loading.fingerprint import hash_text


ROOT = Path(__file__).parents[1]
PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "pillow", "datasets", "lmms-eval", "lm-eval")
NOT_ANSWERING = ("assembly", "diagnostics")  # folders of this package whose changes leave answers as they are


def producer(device: str) -> dict[str, str]:
    """What answers on a torch device are produced by: versions, `code` (a sha256) and `device` ("cpu" or "cuda")."""
    return versions(PACKAGES) | {"code": answering_code(), "device": device.partition(":")[0]}


def producer_digest(device: str) -> str:
    """`producer` as 16 hexadecimal digits, for the key of an answer."""
    return hash_text(json.dumps(producer(device), sort_keys=True))[:16]


def versions(packages: tuple[str, ...]) -> dict[str, str]:
    """Installed versions; missing packages are left out."""
    installed = {}
    for package in packages:
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return installed


def answering_files() -> list[Path]:
    """The code of this package that may decide an answer."""
    files = sorted(ROOT.rglob("*.py"))
    return [file for file in files if file.relative_to(ROOT).parts[0] not in NOT_ANSWERING]


@functools.cache
def answering_code() -> str:
    """The sha256 of the code that answers."""
    return hash_code(ROOT, answering_files())


def hash_code(root: Path, files: Iterable[Path]) -> str:
    """Return the sha256 of Python files and their paths below `root`, without comments, docstrings and formatting."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(root).as_posix()}\0{_instructions(path.read_text('utf-8'))}\0".encode())
    return digest.hexdigest()


def _instructions(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
