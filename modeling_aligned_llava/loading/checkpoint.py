"""Loads checkpoints strictly: a missing or misshapen weight is an error, never a random tensor."""

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError

from modeling_aligned_llava.errors import UserError


def check_source(source: str | Path, what: str) -> None:
    """A Hub id is `owner/name`; everything else has to be a folder.

    Raises:
        UserError: there is no such folder.
    """
    is_hub_id = isinstance(source, str) and source.count("/") == 1 and not source.startswith((".", "/", "~"))
    if not is_hub_id and not Path(source).is_dir():
        raise UserError(f"{what}: there is no folder {source}")


def load_part(auto_class: Any, source: str | Path, what: str, **kwargs: Any) -> Any:
    """`auto_class.from_pretrained(source)`, with one line instead of a traceback for an unusable folder."""
    try:
        return auto_class.from_pretrained(source, **kwargs)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"{what}: cannot load {source}: {' '.join(str(error).split())}") from error


def end_tokens(*sources: Any) -> list[int]:
    """Every end-of-sequence id that configs and tokenizers name, as an id, a list of ids or not at all."""
    ids: set[int] = set()
    for source in sources:
        named = getattr(source, "eos_token_id", None)
        ids.update(named if isinstance(named, list | tuple) else [] if named is None else [named])
    return sorted(ids)


def local_folder(source: str) -> str:
    """The folder of a checkpoint, downloaded if `source` is a Hub id."""
    return source if Path(source).is_dir() else snapshot_download(source)


def load_complete(
    auto_class: Any, folder: str, dtype: str | torch.dtype, trust_remote_code: bool = False, **kwargs: Any
) -> Any:
    """`auto_class.from_pretrained`, in evaluation mode, that never fills a hole with random weights.

    Raises:
        UserError: the folder cannot be loaded, or weights of the model are missing in it or of another shape
            (transformers only prints a report and goes on).
    """
    try:
        model, info = auto_class.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=trust_remote_code,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
            **kwargs,
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(f"cannot load {folder}: {' '.join(str(error).split())}") from error
    if info["missing_keys"]:
        missing = sorted(info["missing_keys"])
        raise UserError(f"{folder} lacks {len(missing)} weights of its model, the first is {missing[0]}")
    if info["mismatched_keys"]:
        name, found, wanted = sorted(info["mismatched_keys"])[0]
        raise UserError(f"{folder}: {name} has shape {list(found)}, its configuration says {list(wanted)}")
    return model.eval()
