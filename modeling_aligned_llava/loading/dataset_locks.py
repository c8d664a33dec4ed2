"""Locks of `datasets` in folders with long paths."""

import hashlib
import os

from datasets.utils._filelock import FileLock

from modeling_aligned_llava.loading.upstream import require


require(__name__)

_LONGEST = 255  # bytes of a file name


def repair_dataset_locks() -> None:
    """Let `datasets` lock in folders with long paths.

    It names a lock after the path of a folder, and shortens a long one. But it counts characters where file systems
    count bytes, so that umlauts make a name too long, and it shortens with `hash()`, which differs from process to
    process, so that none of them waits for another. Names that are short enough stay as they are. Superfluous once
    https://github.com/huggingface/datasets/issues/8653 is closed (open in datasets 5.2).
    """
    FileLock.hash_filename_if_too_long = classmethod(_lock_path)  # type: ignore[assignment]


def _lock_path(_: type, path: str) -> str:
    folder, name = os.path.split(os.path.abspath(os.path.expanduser(path)))
    if len(os.fsencode(name)) > _LONGEST:
        name = f"{hashlib.sha256(os.fsencode(name)).hexdigest()}.lock"
    return os.path.join(folder, name)
