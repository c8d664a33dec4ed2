"""What produces an answer besides its inputs: package versions, this package's answering code, the kind of device."""

import json

from modeling_aligned_llava.loading.fingerprint import hash_code, hash_text, versions


ADAPTERS = tuple(f"modeling_aligned_llava.harness.{name}_model" for name in ("lmms_eval", "lm_eval"))
PACKAGES = ("torch", "torchvision", "transformers", "tokenizers", "pillow", "datasets", "lmms-eval", "lm-eval", "peft")


def producer(device: str) -> dict[str, str]:
    """What answers on a torch device are produced by: versions, `code` (a sha256) and `device` ("cpu" or "cuda")."""
    return versions(PACKAGES) | {"code": hash_code(*ADAPTERS), "device": device.partition(":")[0]}


def producer_digest(device: str) -> str:
    """`producer` as 16 hexadecimal digits, for the key of an answer."""
    return hash_text(json.dumps(producer(device), sort_keys=True))[:16]
