"""sha256 digests of checkpoints, files and texts, which record what a result was computed from."""

import hashlib
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from huggingface_hub.constants import HF_HOME
from tqdm import tqdm

from modeling_aligned_llava.loading.build_once import replacing


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
SETTLED = 2_000_000_000  # ns; a file as young as this may change again without a new time


def hash_files(paths: Iterable[Path], root: Path) -> str:
    """Return the sha256 over names (relative to `root`) and contents of `paths`, in sorted order."""
    digest, files = hashlib.sha256(), sorted(set(paths))
    total = sum(path.stat().st_size for path in files)
    with tqdm(total=total, unit="B", unit_scale=True, desc=f"sha256 of {root.name}", disable=None, delay=2) as bar:
        for path in files:
            digest.update(f"{path.relative_to(root).as_posix()}\0{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(1 << 24):
                    digest.update(block)
                    bar.update(len(block))
    return digest.hexdigest()


def hash_checkpoint(folder: str | Path) -> str:
    """Return the sha256 of everything in a checkpoint folder that can change an answer: weights, configuration,
    code, tokenizer and chat template, but not the training's logs.

    A folder is read once: its digest is kept in the cache, under names, sizes and times of its files.
    """
    root = Path(folder).resolve()
    files = sorted({path for pattern in CHECKPOINT_FILES for path in root.glob(pattern) if path.is_file()})
    state = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns, stat.st_ino) for path in files]
    kept = Path(HF_HOME) / "aligned_llava/sha256" / hash_text(repr(state))
    if kept.is_file():
        return kept.read_text()
    digest = hash_files(files, root)
    if time.time_ns() - max((modified for _, _, modified, _ in state), default=0) > SETTLED:
        with suppress(OSError), replacing(kept) as unfinished:  # an unwritable cache is not a failure
            unfinished.write_text(digest)
    return digest


def hash_text(text: str) -> str:
    """Return the sha256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()
