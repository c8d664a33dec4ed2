"""A random LLaVA checkpoint that stock evaluation loads too."""

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    Qwen2Config,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

import tinyworld


SIDES = {"height": 378, "width": 378}
TOKENIZER = Path(tinyworld.__file__).parent / "backbones" / "language"
VISION: dict[str, Any] = {
    "hidden_size": 384,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "num_attention_heads": 6,
}
TEXT: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "vocab_size": 32_000,
    "tie_word_embeddings": True,
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


def write_checkpoint(folder: Path, dtype: torch.dtype) -> int:
    """Write a plain LLaVA with random weights and 729 visual tokens per image; return its number of parameters."""
    tokenizer = make_tokenizer()
    vision = SiglipVisionConfig(**VISION, image_size=378, patch_size=14, vision_use_head=False)
    text = Qwen2Config(**TEXT, max_position_embeddings=4096, eos_token_id=None, pad_token_id=0)
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
