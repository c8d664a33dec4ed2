"""Random checkpoints of stated sizes that stock evaluation loads too: LLaVA, one that rambles on, one with tiles."""

from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    LlavaOnevisionImageProcessor,
    LlavaOnevisionProcessor,
    LlavaOnevisionVideoProcessor,
    LlavaProcessor,
    Qwen2Config,
    SiglipImageProcessor,
    SiglipVisionConfig,
)

import tinyworld


TOKENIZER = Path(tinyworld.__file__).parent / "backbones" / "language"


@dataclass(frozen=True)
class Shape:
    """Sizes of the network, and number of documents."""

    vision: dict[str, Any]
    text: dict[str, Any]
    images: int  # of POPE, with 18 questions each; the others follow


SHAPES = {
    "40m": Shape(
        {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 6},
        {
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "vocab_size": 32_000,
            "tie_word_embeddings": True,
        },
        4,
    ),
    "3b": Shape(  # SigLIP-SO400M and the sizes of Llama-3.2-3B
        {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16},
        {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
            "tie_word_embeddings": True,
        },
        20,
    ),
    "toy": Shape(
        {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2},
        {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "vocab_size": 2_000,
            "tie_word_embeddings": True,
        },
        1,
    ),
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


def write_checkpoint(folder: Path, shape: Shape, dtype: torch.dtype) -> int:
    """Write a plain LLaVA with random weights and 729 visual tokens per image; return its number of parameters."""
    tokenizer = make_tokenizer()
    model = random_llava(shape, tokenizer, dtype)
    model.save_pretrained(folder)
    save_llava_processor(folder, tokenizer)
    return model.num_parameters()


def write_rambling_checkpoint(folder: Path, shape: Shape, dtype: torch.dtype) -> None:
    """Write the same LLaVA, but one that answers four tokens and then empty lines for ever.

    Its layers add nothing to the stream, at the same cost; the head maps each token to the next of a fixed chain.
    """
    tokenizer = make_tokenizer()
    model = random_llava(replace(shape, text={**shape.text, "tie_word_embeddings": False}), tokenizer, dtype)
    prompt = tokenizer.encode(" ASSISTANT:", add_special_tokens=False)[-1]
    (newline,) = tokenizer.encode("\n", add_special_tokens=False)
    words = tokenizer.encode("red blue green", add_special_tokens=False)[:4]
    chain = [prompt, *words, newline, newline]
    with torch.no_grad():
        for layer in model.model.language_model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        embeddings = model.get_input_embeddings().weight
        model.lm_head.weight.zero_()
        for token, following in pairwise(chain):
            model.lm_head.weight[following] += embeddings[token] / embeddings[token].norm()
    model.save_pretrained(folder)
    save_llava_processor(folder, tokenizer)


def write_tiled_checkpoint(folder: Path, shape: Shape, dtype: torch.dtype) -> None:
    """Write a LLaVA-OneVision of the same sizes: an image becomes an overview and tiles, depending on its shape."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>", "<video>"]})
    vision, text = parts(shape)
    grids = [[378, 378], [378, 756], [756, 378]]
    config = LlavaOnevisionConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        video_token_index=tokenizer.convert_tokens_to_ids("<video>"),
        image_grid_pinpoints=grids,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
        tie_word_embeddings=shape.text["tie_word_embeddings"],
    )
    random_model(LlavaOnevisionForConditionalGeneration, config, dtype).save_pretrained(folder)
    size = {"height": 378, "width": 378}
    LlavaOnevisionProcessor(
        LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=grids),
        tokenizer,
        LlavaOnevisionVideoProcessor(size=size),
        num_image_tokens=729,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)


def parts(shape: Shape) -> tuple[SiglipVisionConfig, Qwen2Config]:
    vision = SiglipVisionConfig(**shape.vision, image_size=378, patch_size=14, vision_use_head=False)
    return vision, Qwen2Config(**shape.text, max_position_embeddings=4096, eos_token_id=None, pad_token_id=0)


def random_llava(shape: Shape, tokenizer: Any, dtype: torch.dtype) -> Any:
    vision, text = parts(shape)
    config = LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=729,
        vision_feature_select_strategy="full",
        vision_feature_layer=-2,
        tie_word_embeddings=text.tie_word_embeddings,
    )
    return random_model(LlavaForConditionalGeneration, config, dtype)


def random_model(kind: Any, config: Any, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return kind._from_config(config, dtype=dtype)


def save_llava_processor(folder: Path, tokenizer: Any) -> None:
    LlavaProcessor(
        SiglipImageProcessor(size={"height": 378, "width": 378}),
        tokenizer,
        patch_size=14,
        vision_feature_select_strategy="full",
        chat_template=tokenizer.chat_template,
    ).save_pretrained(folder)
