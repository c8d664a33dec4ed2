"""Chooses the chat template of a new checkpoint and writes its folder whole or not at all."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import LlavaProcessor, PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.build_once import build_once
from modeling_aligned_llava.loading.chat_templates import chat_template as shipped_template
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


def build_checkpoint(
    out: Path, make: Callable[[], tuple[AlignedLlavaForConditionalGeneration, LlavaProcessor]], exist_ok: bool = False
) -> Path:
    """Write weights, code, processor and generation config of what `make` returns; `out` appears whole or not at all.

    Args:
        out: folder to write.
        make: called only if there is no `out`, by one process at a time.
        exist_ok: leave `out` as it is if it is there, or if another process makes it at this moment.

    Raises:
        UserError: `out` exists, and `exist_ok` is not set.
    """

    def build(folder: Path) -> None:
        model, processor = make()
        _state_image_size(processor)
        model.save_pretrained(folder)
        processor.save_pretrained(folder)

    if not build_once(out, build) and not exist_ok:
        raise UserError(f"{out} already exists: remove it or choose another --out")
    return out


def _state_image_size(processor: LlavaProcessor) -> None:
    """Give the size of images the name under which LlavaProcessor tells vLLM the number of their tokens.

    SigLIP's image processor does not crop, and has no `crop_size`; with `do_center_crop` off, no pixel changes.
    """
    images: Any = processor.image_processor
    if getattr(images, "crop_size", None) is None:
        images.crop_size, images.do_center_crop = images.size, False
