"""The state of an interrupted training is read without running code that somebody may have put into its files.

transformers reads `optimizer.pt`, `scheduler.pt` and `rng_state*.pth` with `weights_only=True`. The parts of a sharded
checkpoint have an index, `.metadata`, which torch reads with `pickle.load`: it is checked first.
"""

import pickle  # nosec B403  to refuse what may not be in one
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from modeling_aligned_llava.errors import UserError


_INDEX = "torch.distributed.checkpoint.metadata"
_NAMES = {
    *((_INDEX, name) for name in ("Metadata", "MetadataIndex", "StorageMeta", "BytesStorageMetadata")),
    *((_INDEX, name) for name in ("TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata")),
    (_INDEX, "_MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    *((module, "PosixPath") for module in ("pathlib", "pathlib._local")),
}


@contextmanager
def reading_state(checkpoint: str | Path | None) -> Iterator[None]:
    """Check the indices of a checkpoint folder, and name the folder if its state cannot be read.

    Raises:
        UserError: a file would run code when it is read, or is damaged.
    """
    try:
        if checkpoint is not None:
            for index in sorted(Path(checkpoint).rglob("*.metadata")):
                with index.open("rb") as file:
                    _Checked(file).load()
        yield
    except (pickle.UnpicklingError, EOFError, SafetensorError, RuntimeError) as error:
        if type(error) is RuntimeError and "PytorchStreamReader" not in str(error):
            raise
        reason = str(error).strip().partition("\n")[0][:200]
        raise UserError(
            f"{checkpoint}: its training state is damaged or would run code, and was not read ({reason}); remove this "
            "folder, and the run continues from the checkpoint before"
        ) from error


class _Checked(pickle.Unpickler):
    """Refuses everything that is not part of an index."""

    def find_class(self, module: str, name: str) -> Any:
        is_dtype = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if (module, name) not in _NAMES and not is_dtype:
            raise pickle.UnpicklingError(f"{module}.{name} in an index")
        return super().find_class(module, name)
