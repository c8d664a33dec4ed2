"""Copies the code of a checkpoint to where transformers imports it from, one process at a time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_cached_module_file
from transformers.utils import HF_MODULES_CACHE, cached_file

from ..errors import UserError
from .files import lock_for


_NAMING_CODE = ("config.json", "processor_config.json", "preprocessor_config.json", "tokenizer_config.json")


def copy_remote_code(source: str, revision: str | None = None) -> None:
    """Copy the Python files of a checkpoint into transformers' cache of modules; call it before `trust_remote_code`.

    `from_pretrained` copies them in place and without a lock, so that another process may import half a file. After
    this call it finds all of them there and copies none.

    Args:
        source: folder or Hub id.
        revision: commit on the Hub.

    Raises:
        UserError: the checkpoint takes code from another repository, where it can change.
        OSError: a file that the checkpoint names is missing.
        ImportError: the code needs a package that is not installed.
    """
    with lock_for(Path(HF_MODULES_CACHE) / "transformers_modules"):
        for name in _NAMING_CODE:
            try:
                file: Any = cached_file(source, name, revision=revision)
            except OSError:  # it has none; what else may be wrong, loading says
                continue
            for reference in _references(json.loads(Path(file).read_text(encoding="utf-8"))):
                repository, _, reference = reference.rpartition("--")
                if repository not in ("", source):
                    raise UserError(
                        f"{source}: its {name} takes code from {repository} on the Hub, which is not pinned: copy "
                        "those files into the checkpoint and name them without the repository"
                    )
                get_cached_module_file(source, f"{reference.partition('.')[0]}.py", revision=revision)


def _references(settings: dict[str, Any]) -> Iterator[str]:
    """`module.Class` or `owner/name--module.Class` for each class that is code of a checkpoint."""
    for named in (settings.get("auto_map") or {}).values():
        yield from filter(None, named if isinstance(named, list) else [named])
