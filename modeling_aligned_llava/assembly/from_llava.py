"""Convert a llava-hf checkpoint to an aligned one of any method; its weights stay the same, bit for bit.

python -m modeling_aligned_llava.assembly --llava DIR --method norm-gwc --out DIR
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoProcessor, LlavaConfig, LlavaForConditionalGeneration

from modeling_aligned_llava.configuration_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.chat_templates import chat_template as shipped_template
from modeling_aligned_llava.loading.checkpoint import check_source, load_part, load_strict
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.norm_alignment import mean_embedding_norm

from .checkpoint_folder import build_checkpoint
from .initial_norm import initialise_norm


_NOT_FIELDS = {"model_type", "architectures", "transformers_version", "_name_or_path", "auto_map"}


def convert(
    source: str | Path,
    out: str | Path,
    *,
    fields: dict[str, Any],
    chat_template: str | None = None,
    images: Iterable[str | Path] | None = None,
    texts: Iterable[str] | None = None,
) -> Path:
    """Write a checkpoint folder of any method with the weights of `source`; `baseline` has the same logits.

    The text norm is measured on the embeddings as they are, including rows that only pad the vocabulary.

    Args:
        source: folder or Hub id of a `LlavaForConditionalGeneration` with its processor.
        out: folder to write; it appears complete or not at all.
        fields: fields of `AlignedLlavaConfig`, as returned by `method_fields`.
        chat_template: name of a shipped template; None: the checkpoint's own, which may lack generation markers.
        images: files of training images, for methods that measure N.
        texts: training texts, for methods that measure the norm of text inside the decoder.

    Raises:
        UserError: `source` is missing, another architecture or incomplete, or `out` exists.
    """
    return build_checkpoint(Path(out), lambda: _converted(source, fields, chat_template, images, texts))


def _converted(
    source: str | Path,
    fields: dict[str, Any],
    chat_template: str | None,
    images: Iterable[str | Path] | None,
    texts: Iterable[str] | None,
) -> tuple[AlignedLlavaForConditionalGeneration, Any]:
    check_source(source, "LLaVA checkpoint")
    config = load_part(AutoConfig, source, "LLaVA checkpoint")
    if not isinstance(config, LlavaConfig) or config.model_type != "llava":
        raise UserError(f"LLaVA checkpoint: {source} is a {config.model_type} model, not llava")
    processor = load_part(AutoProcessor, source, "processor")
    if chat_template is not None:
        processor.chat_template = shipped_template(chat_template)
    theirs = load_strict(LlavaForConditionalGeneration, source, "LLaVA checkpoint", dtype="auto")

    saved = {name: value for name, value in theirs.config.to_dict().items() if name not in _NOT_FIELDS}
    text_norm = mean_embedding_norm(theirs.get_input_embeddings())
    aligned = AlignedLlavaConfig(**{**saved, **fields, "text_norm": text_norm})
    model = _take_over(theirs, aligned)
    initialise_norm(model, processor, images, texts)
    return model, processor


def _take_over(
    theirs: LlavaForConditionalGeneration, config: AlignedLlavaConfig
) -> AlignedLlavaForConditionalGeneration:
    """Move the modules of `theirs` into our class: every key keeps its name, and only the norm's may be new."""
    with torch.device("meta"):
        model = AlignedLlavaForConditionalGeneration(config)
    norm = model.model.multi_modal_projector.norm
    new = {f"model.multi_modal_projector.norm.{name}" for name in ([] if norm is None else norm.state_dict())}
    # Whole modules, because buffers that no checkpoint holds (rotary frequencies) must come along.
    projector = model.model.multi_modal_projector
    model.model.vision_tower = theirs.model.vision_tower
    model.model.language_model = theirs.model.language_model
    model.lm_head = theirs.lm_head
    projector.linear_1 = theirs.model.multi_modal_projector.linear_1
    projector.linear_2 = theirs.model.multi_modal_projector.linear_2
    differing = set(model.state_dict()) ^ set(theirs.state_dict())
    if differing != new:
        raise UserError(f"LLaVA checkpoint: its keys do not map to ours: {', '.join(sorted(differing ^ new)[:3])}")
    model.tie_weights()
    if norm is not None:
        norm.to_empty(device="cpu")
    model.generation_config = theirs.generation_config
    return model.eval()
