"""Chooses the chat template of a new checkpoint and writes its folder whole or not at all."""

import os
import shutil
from pathlib import Path

from transformers import LlavaProcessor, PreTrainedTokenizerBase

from modeling_aligned_llava.chat_templates import chat_template as shipped_template
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaForConditionalGeneration


def choose_template(tokenizer: PreTrainedTokenizerBase, name: str | None, source: str | Path) -> str:
    """Return a shipped template by name, or the tokenizer's own if it marks the supervised tokens.

    Raises:
        UserError: there is neither.
    """
    if name is not None:
        return shipped_template(name)
    own = tokenizer.chat_template
    if not isinstance(own, str) or "generation" not in own.replace("add_generation_prompt", ""):
        raise UserError(f"the chat template of {source} has no generation markers: name one with --chat-template")
    return own


def write_checkpoint(model: AlignedLlavaForConditionalGeneration, processor: LlavaProcessor, out: Path) -> None:
    """Write weights, code, processor and generation config; `out` appears complete or not at all."""
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        model.save_pretrained(unfinished)
        processor.save_pretrained(unfinished)
        os.replace(unfinished, out)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
