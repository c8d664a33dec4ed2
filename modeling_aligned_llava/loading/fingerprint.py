"""sha256 digests of checkpoints, files and texts, which record what a result was computed from."""

import hashlib
from collections.abc import Iterable
from pathlib import Path


CHECKPOINT_FILES = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    "generation_config.json",
    "*processor*.json",
    "tokenizer*",
    "special_tokens_map.json",
    "chat_template*",
    "*.jinja",
    "*.py",
)


def hash_files(paths: Iterable[Path], root: Path) -> str:
    """Return the sha256 over names (relative to `root`) and contents of `paths`, in sorted order."""
    digest = hashlib.sha256()
    for path in sorted(set(paths)):
        digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while block := file.read(1 << 24):
                digest.update(block)
    return digest.hexdigest()


def hash_checkpoint(folder: str | Path) -> str:
    """Return the sha256 of everything in a checkpoint folder that can change an answer: weights, configuration,
    code, tokenizer and chat template, but not the training's logs.
    """
    root = Path(folder)
    return hash_files((path for pattern in CHECKPOINT_FILES for path in root.glob(pattern) if path.is_file()), root)


def hash_text(text: str) -> str:
    """Return the sha256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()
