"""sha256 digests of checkpoints, files, texts and code, which record what a result was computed from."""

import ast
import functools
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from huggingface_hub.constants import HF_HOME
from tqdm import tqdm

from modeling_aligned_llava.loading.files import replacing


# What lies beside weights and is read by no model, tokenizer or processor: logs and records of training, and texts.
RECORDS = {
    *("settings.json", "training_complete.json", "checkpoint_complete.json", "source.json"),
    *("norm_parameters.json", "norm_profile.json", "trainer_state.json"),
    *("all_results.json", "train_results.json", "eval_results.json"),
}
UNREAD = {".md", ".jsonl", ".log", ".bin", ".pt", ".pth", ".ckpt", ".pkl", ".lock", ".gguf", ".onnx", ".png", ".jpg"}
MORE_TEMPLATES = "additional_chat_templates"  # a folder that transformers reads
SETTLED = 2_000_000_000  # ns; a file as young as this may change again without a new time
ROOMS = ("modeling_aligned_llava", "train", "eval")  # whose code `hash_code` follows


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
    """Return the sha256 of everything in a checkpoint folder that can change an answer: all of its files but the
    records of training and texts for people. To adapters that were kept apart belongs the model below them.

    A folder is read once: its digest is kept in the cache, under names, sizes and times of its files.

    Raises:
        UserError: the model below adapters cannot be had.
    """
    root = Path(folder).resolve()
    files = sorted(_files_read(root))
    state = [(str(path), (stat := path.stat()).st_size, stat.st_mtime_ns, stat.st_ino) for path in files]
    kept = Path(HF_HOME) / "aligned_llava/sha256" / hash_text(repr(state))
    if kept.is_file():
        digest = kept.read_text()
    else:
        digest = hash_files(files, root)
        if time.time_ns() - max((modified for _, _, modified, _ in state), default=0) > SETTLED:
            with suppress(OSError), replacing(kept) as unfinished:  # an unwritable cache is not a failure
                unfinished.write_text(digest)
    below = _model_below(root)
    return digest if below is None else hash_text(f"{digest} on {hash_checkpoint(below)}")


def _files_read(root: Path) -> Iterator[Path]:
    for path in (*root.glob("*"), *root.glob(f"{MORE_TEMPLATES}/*")):
        known = path.name in RECORDS or path.suffix.lower() in UNREAD or path.name.startswith(".")
        if path.is_file() and not known:
            yield path


def _model_below(root: Path) -> str | None:
    """The folder of the model that adapters belong to; None for a whole model."""
    try:
        settings = json.loads((root / "adapter_config.json").read_text("utf-8"))
    except (OSError, ValueError):  # none, or one that cannot be loaded either
        return None
    from modeling_aligned_llava.loading.checkpoint import check_source, local_folder

    name = settings.get("base_model_name_or_path")
    if not name:
        return None
    check_source(name, f"{root}: base_model_name_or_path")
    return local_folder(f"{name}@{settings['revision']}" if settings.get("revision") else name)


def hash_text(text: str) -> str:
    """Return the sha256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """Installed versions; missing packages are left out."""
    installed = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            installed[package] = metadata.version(package)
    return installed


@functools.cache
def hash_code(*modules: str) -> str:
    """Return the sha256 of modules and of all of ours that they import, without comments, docstrings and formatting.

    What a cache was made with: an edit elsewhere leaves it valid.
    """
    sources: dict[str, str] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        file = _module_file(name)
        if name in sources or file is None:
            continue
        tree = ast.parse(file.read_text("utf-8"))
        package = name if file.name == "__init__.py" else name.rpartition(".")[0]
        waiting += [package, *_imported(tree, package)]
        sources[name] = _instructions(tree)
    return hash_text(repr(sorted(sources.items())))


def _module_file(name: str) -> Path | None:
    """The file of a module of ours; None for others, and for a name inside a module."""
    room, *inside = name.split(".")
    spec = find_spec(room) if room in ROOMS else None
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent.joinpath(*inside)
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    """The modules, or names inside modules, that a file of `package` imports, wherever in it the import stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: -(node.level - 1) or None] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _instructions(tree: Any) -> str:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)
