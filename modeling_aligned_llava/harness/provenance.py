"""What produces an answer besides its inputs: package versions, our answering code, the device, and the process."""

import json
import os
from typing import TYPE_CHECKING

from modeling_aligned_llava.loading.fingerprint import hash_code, hash_text, versions


if TYPE_CHECKING:
    from accelerate import Accelerator

ADAPTERS = tuple(f"modeling_aligned_llava.harness.{name}_model" for name in ("lmms_eval", "lm_eval"))
PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "pillow", "datasets", "lmms-eval", "lm-eval", "peft")


def producer(device: str) -> dict[str, str]:
    """What answers on a torch device are produced by: versions, `code` (a sha256) and `device` ("cpu" or "cuda")."""
    return versions(PACKAGES) | {"code": hash_code(*ADAPTERS), "device": device.partition(":")[0]}


def producer_digest(device: str) -> str:
    """`producer` as 16 hexadecimal digits, for the key of an answer."""
    return hash_text(json.dumps(producer(device), sort_keys=True))[:16]


def launched() -> "Accelerator | None":
    """Return the accelerator of this process if `accelerate launch` started several; None otherwise."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return None
    from accelerate import Accelerator

    return Accelerator()


def own_log(answer_log: str | None, rank: int) -> str | None:
    """Return the answer log of a process: a log has one writer, so all but the first get their own beside it."""
    return f"{answer_log}.{rank}" if answer_log and rank else answer_log
