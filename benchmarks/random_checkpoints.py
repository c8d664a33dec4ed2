"""Random checkpoints: a LLaVA that stock evaluation loads too, and the backbones that a recipe starts from."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
    SiglipImageProcessor,
    SiglipVisionConfig,
    SiglipVisionModel,
)

import tinyworld
from benchmarks.shapes import SIZES
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer


SIDES = {"height": 378, "width": 378}
TOKENIZER = Path(tinyworld.__file__).parent / "backbones" / "language"
SHAPES: dict[str, dict[str, dict[str, Any]]] = {
    "default": {
        "vision": {
            "hidden_size": 384,
            "intermediate_size": 1536,
            "num_hidden_layers": 8,
            "num_attention_heads": 6,
            "patch_size": 14,
        },
        "text": {
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "vocab_size": 32_000,
            "tie_word_embeddings": True,
        },
    },
    **{name: SIZES[name] for name in ("toy", "3b", "7b")},
}


def make_tokenizer() -> Any:
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]})
    # Both stock llava_hf and this package render with this template, so both ask the same questions.
    tokenizer.chat_template = (
        "{% for m in messages %}USER: {% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
        "{{ '<image>\n' if part.type == 'image' else part.text }}{% endfor %}{% endif %}"
        "{% if m.role == 'user' %} ASSISTANT:{% endif %}{% endfor %}"
    )
    return tokenizer


def write_checkpoint(folder: Path, dtype: torch.dtype, shape: str, device: str) -> int:
    """Write a plain LLaVA with 729 visual tokens per image, made on `device`; return its number of parameters."""
    tokenizer = make_tokenizer()
    vision = SiglipVisionConfig(**SHAPES[shape]["vision"] | {"image_size": SIDES["height"]}, vision_use_head=False)
    text = Qwen2Config(
        **_text_sizes(shape, len(tokenizer)), max_position_embeddings=4096, eos_token_id=None, pad_token_id=0
    )
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=729,
        vision_feature_select_strategy="full",
        vision_feature_layer=-2,
        tie_word_embeddings=text.tie_word_embeddings,
    )
    torch.manual_seed(0)
    with torch.device(device):
        model: Any = LlavaForConditionalGeneration._from_config(config, dtype=dtype)
    model.save_pretrained(folder)
    LlavaProcessor(
        # vLLM reads crop_size, which changes no pixel without do_center_crop.
        SiglipImageProcessor(size=SIDES, crop_size=SIDES, do_center_crop=False),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)
    return model.num_parameters()


def write_backbones(folder: Path, shape: str, device: str) -> None:
    """Write a tower (float32) and a decoder (bfloat16) as the Hub has them, into FOLDER/vision and FOLDER/language."""
    vision = SiglipVisionConfig(**SHAPES[shape]["vision"])
    tokenizer = SavedTokenizer.from_pretrained(TOKENIZER)
    text = LlamaConfig(
        **_text_sizes(shape, len(tokenizer)),
        max_position_embeddings=8192,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    torch.manual_seed(0)
    with torch.device(device):
        SiglipVisionModel(vision).save_pretrained(folder / "vision")
        LlamaForCausalLM._from_config(text, dtype=torch.bfloat16).save_pretrained(folder / "language")
    side = SHAPES[shape]["vision"]["image_size"]
    SiglipImageProcessor(size={"height": side, "width": side}).save_pretrained(folder / "vision")
    tokenizer.save_pretrained(folder / "language")


def _text_sizes(shape: str, tokens: int) -> dict[str, Any]:
    """Sizes of the decoder, with at least so many rows in its embedding."""
    text = SHAPES[shape]["text"]
    return {**text, "vocab_size": max(text["vocab_size"], tokens)}
