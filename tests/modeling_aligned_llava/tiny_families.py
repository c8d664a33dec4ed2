"""One tiny random model of every family that `connectors.align` serves, with the inputs of one image and some text."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor


WIDTH = 32
VOCABULARY = 128
IMAGE, VIDEO, START, END = 120, 121, 122, 123  # ids from 120 on are not text
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,  # connectors whose output is well above the epsilon of the norm, as trained ones are
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_channels": 3,
    "image_size": 28,
    "patch_size": 7,  # 16 patches
    "initializer_range": 0.2,
}
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
QWEN_VISION = {"depth": 2, "num_heads": 4, "patch_size": 7, "initializer_range": 0.2}
QWEN_IDS = {
    "image_token_id": IMAGE,
    "video_token_id": VIDEO,
    "vision_start_token_id": START,
    "vision_end_token_id": END,
}

Inputs = dict[str, Tensor]
Tiny = tuple[Any, Inputs]
BUILDERS: dict[str, Callable[[], Tiny]] = {}


def family(build: Callable[[], Tiny]) -> Callable[[], Tiny]:
    BUILDERS[build.__name__] = build
    return build


def tiny(name: str) -> Tiny:
    """A random model in eval mode and its inputs, the same at every call."""
    torch.manual_seed(0)
    model, inputs = BUILDERS[name]()
    return model.eval(), inputs


def prompt(image_tokens: int) -> Inputs:
    ids = torch.tensor([[5, 6, 7, START, *[IMAGE] * image_tokens, END, 8, 9, 10, 11]])
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def pixels(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def square(image_tokens: int) -> Inputs:
    return {**prompt(image_tokens), "pixel_values": pixels(1, 3, 28, 28)}


def tiles() -> Inputs:
    """A base image of 16 tokens, and one tile of 4 rows with a newline each."""
    return {**prompt(16 + 4 * 5), "pixel_values": pixels(1, 2, 3, 28, 28), "image_sizes": torch.tensor([[28, 28]])}


def grid() -> Inputs:
    """4 x 4 patches of 7 pixels and 2 frames, merged to 4 tokens."""
    inputs = prompt(4)
    return {
        **inputs,
        "pixel_values": pixels(16, 3 * 2 * 7 * 7),
        "image_grid_thw": torch.tensor([[1, 4, 4]]),
        "mm_token_type_ids": (inputs["input_ids"] == IMAGE).long(),
    }


@family
def llava() -> Tiny:
    config = hf.LlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION), text_config=hf.LlamaConfig(**TEXT), image_token_index=IMAGE
    )
    return hf.LlavaForConditionalGeneration(config), square(16)


@family
def llava_next() -> Tiny:
    config = hf.LlavaNextConfig(
        vision_config=hf.CLIPVisionConfig(**VISION),
        text_config=hf.MistralConfig(**TEXT),
        image_token_index=IMAGE,
        image_grid_pinpoints=[[28, 28], [56, 28]],
    )
    return hf.LlavaNextForConditionalGeneration(config), tiles()


@family
def llava_onevision() -> Tiny:
    config = hf.LlavaOnevisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=[[28, 28], [56, 28]],
    )
    return hf.LlavaOnevisionForConditionalGeneration(config), tiles()


@family
def qwen2_vl() -> Tiny:
    vision = dict(**QWEN_VISION, embed_dim=32, hidden_size=WIDTH, mlp_ratio=2)
    config = hf.Qwen2VLConfig(text_config={**TEXT, "rope_parameters": MROPE}, vision_config=vision, **QWEN_IDS)
    return hf.Qwen2VLForConditionalGeneration(config), grid()


@family
def qwen2_5_vl() -> Tiny:
    vision = dict(
        **QWEN_VISION,
        hidden_size=32,
        intermediate_size=64,
        out_hidden_size=WIDTH,
        window_size=28,
        fullatt_block_indexes=[1],
    )
    config = hf.Qwen2_5_VLConfig(text_config={**TEXT, "rope_parameters": MROPE}, vision_config=vision, **QWEN_IDS)
    return hf.Qwen2_5_VLForConditionalGeneration(config), grid()


@family
def qwen3_vl() -> Tiny:
    vision = dict(
        **QWEN_VISION,
        hidden_size=32,
        intermediate_size=64,
        out_hidden_size=WIDTH,
        num_position_embeddings=16,
        deepstack_visual_indexes=[0],
    )
    text = {**TEXT, "rope_parameters": {**MROPE, "mrope_interleaved": True}}
    config = hf.Qwen3VLConfig(text_config=text, vision_config=vision, **QWEN_IDS)
    return hf.Qwen3VLForConditionalGeneration(config), grid()


@family
def internvl() -> Tiny:
    config = hf.InternVLConfig(
        vision_config={**VISION, "image_size": [28, 28], "patch_size": [7, 7]},
        text_config=hf.Qwen2Config(**TEXT),
        image_token_id=IMAGE,
        image_seq_length=4,
    )
    return hf.InternVLForConditionalGeneration(config), square(4)


@family
def idefics3() -> Tiny:
    config = hf.Idefics3Config(
        vision_config=dict(VISION), text_config=hf.LlamaConfig(**TEXT), image_token_id=IMAGE, scale_factor=2
    )
    return hf.Idefics3ForConditionalGeneration(config), {**prompt(4), "pixel_values": pixels(1, 1, 3, 28, 28)}


@family
def smolvlm() -> Tiny:
    config = hf.SmolVLMConfig(
        vision_config=dict(VISION), text_config=hf.LlamaConfig(**TEXT), image_token_id=IMAGE, scale_factor=2
    )
    return hf.SmolVLMForConditionalGeneration(config), {**prompt(4), "pixel_values": pixels(1, 1, 3, 28, 28)}


@family
def paligemma() -> Tiny:
    config = hf.PaliGemmaConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False, projection_dim=WIDTH),
        text_config=hf.GemmaConfig(**TEXT),
        image_token_index=IMAGE,
        projection_dim=WIDTH,
        hidden_size=WIDTH,
    )
    return hf.PaliGemmaForConditionalGeneration(config), square(16)


@family
def gemma3() -> Tiny:
    config = hf.Gemma3Config(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.Gemma3TextConfig(**TEXT, sliding_window=64),
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=START,
        eoi_token_index=END,
    )
    model = hf.Gemma3ForConditionalGeneration(config)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.02)  # zeros by default
    inputs = square(4)
    return model, {**inputs, "token_type_ids": (inputs["input_ids"] == IMAGE).long()}


@family
def glm4v() -> Tiny:
    vision = dict(**QWEN_VISION, hidden_size=32, intermediate_size=64, image_size=28, out_hidden_size=WIDTH)
    config = hf.Glm4vConfig(
        text_config={**TEXT, "rope_parameters": {**MROPE, "partial_rotary_factor": 1.0}},
        vision_config=vision,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        image_start_token_id=START,
        image_end_token_id=END,
        video_start_token_id=124,
        video_end_token_id=125,
    )
    return hf.Glm4vForConditionalGeneration(config), grid()


@family
def mistral3() -> Tiny:
    vision = {name: value for name, value in VISION.items() if name != "num_channels"}
    config = hf.Mistral3Config(
        vision_config=hf.PixtralVisionConfig(**vision, head_dim=8),
        text_config=hf.MistralConfig(**TEXT),
        image_token_index=IMAGE,
        spatial_merge_size=2,
    )
    return hf.Mistral3ForConditionalGeneration(config), {**square(4), "image_sizes": torch.tensor([[28, 28]])}


@family
def ovis2() -> Tiny:
    vision = dict(**VISION, vocab_size=64, hidden_stride=2, num_visual_indicator_tokens=2)
    config = hf.Ovis2Config(
        vision_config=vision,
        text_config=hf.Qwen2Config(**TEXT),
        image_token_id=IMAGE,
        visual_indicator_token_ids=[START, END],
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
    )
    return hf.Ovis2ForConditionalGeneration(config), square(4)
