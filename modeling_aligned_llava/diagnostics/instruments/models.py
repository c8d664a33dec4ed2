"""Loads any vision-language model with its processor, and prepares the inputs of one question about one image."""

from typing import Any

import torch
from transformers import (
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoModel,
    AutoModelForCausalLM,
    AutoProcessor,
    AutoTokenizer,
)

import modeling_aligned_llava.loading.registration  # noqa: F401  the Auto classes then know the model
from modeling_aligned_llava.alignment import load_vision_language
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inference.prompt import lacks_special_tokens, user_turn
from modeling_aligned_llava.loading.checkpoint import load_part, load_strict
from modeling_aligned_llava.loading.device import resolve_device, resolve_dtype


def load(path: str, trust_remote_code: bool = False, dtype: str = "auto") -> tuple[Any, Any]:
    """Model in eval mode and processor, on the GPU if there is one.

    Args:
        dtype: "auto" is the precision of that device, one for all models, because they are compared.

    Raises:
        UserError: the model is text-only, its weights are absent, incomplete or damaged, or the processor is absent.
    """
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config = load_part(AutoConfig, path, **trust)
    if not _sees_images(config):
        raise UserError(f"{path} is a text-only model ({config.model_type}): it has no visual tokens")
    model: Any = load_vision_language(path, config, dtype=resolve_dtype(dtype, "auto"), **trust)
    processor = load_part(AutoProcessor, path, **trust)
    return model.to(resolve_device("auto")), processor


def _sees_images(config: Any) -> bool:
    """Whether the Auto class loads a vision-language model; one with code of its own may be another."""
    remote = any(name.startswith("AutoModel") for name in getattr(config, "auto_map", None) or {})
    return remote or type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING


def load_language(path: str, trust_remote_code: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer of a language model, or of a vision-language model: what `embeddings` compares.

    Raises:
        UserError: either cannot be loaded.
    """
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config = load_part(AutoConfig, path, **trust)
    visual = type(config) in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    model = load_vision_language(path, config, **trust) if visual else load_strict(AutoModelForCausalLM, path, **trust)
    return model, load_part(AutoTokenizer, path, **trust)


def load_encoder(path: str, trust_remote_code: bool = False, dtype: str = "auto") -> tuple[Any, Any]:
    """A vision-language model with its processor, or an encoder, alone or of a CLIP-like model, with that of images.

    Raises:
        UserError: either cannot be loaded, or the model has no vision encoder.
    """
    trust: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    if _sees_images(load_part(AutoConfig, path, **trust)):
        return load(path, trust_remote_code, dtype)
    # Only the encoder's hidden states are read: neither the other parts nor a pooling head.
    unread = {"unused": ".*", "optional": r"(.*\.)?(pooler|head)\..*"}
    model = load_strict(AutoModel, path, dtype=resolve_dtype(dtype, "auto"), **unread, **trust)
    encoder = model.get_encoder(modality="image")
    if encoder.main_input_name != "pixel_values":
        raise UserError(f"{path} is a text-only model ({model.config.model_type}): it has no vision encoder")
    return encoder.to(resolve_device("auto")), load_part(AutoImageProcessor, path, **trust)


def tokenizer_of(processor: Any) -> Any:
    """The tokenizer inside a processor."""
    return getattr(processor, "tokenizer", processor)


def inputs_of(processor: Any, image: ImageQuestion, device: Any, dtype: torch.dtype | None = None) -> dict[str, Any]:
    """The model's inputs for one image and its question, pixels in `dtype`: Llama 4's processor gives bfloat16.

    Raises:
        UserError: the image cannot be read, or the processor cannot prepare it.
    """
    picture = image.open()
    with errors_named(f"{type(processor).__name__} cannot prepare an image"):
        text = user_turn(processor, image.question, images=1)
        special = lacks_special_tokens(tokenizer_of(processor), text)
        inputs = processor(text=[text], images=[picture], return_tensors="pt", add_special_tokens=special).to(device)
    return {
        name: value.to(dtype=dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in inputs.items()
    }
