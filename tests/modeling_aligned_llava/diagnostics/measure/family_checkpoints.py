"""Tiny random checkpoints, each with its family's own processor, of families that need something of their own.

Images are a few patches of 7 pixels. `PROFILED` are measured; `REFUSED` have no ratio, for the reason in their line.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from torch import nn

from tests.modeling_aligned_llava.diagnostics import more_families
from tests.modeling_aligned_llava.diagnostics.more_families import LESS_TEXT
from tests.modeling_aligned_llava.harness.tiny_checkpoints import PINPOINTS, SQUARE, template, words
from tests.modeling_aligned_llava.tiny_families import (
    IMAGE,
    TEXT,
    VISION,
    VOCABULARY,
    WIDTH,
)


Build = Callable[[], tuple[Any, Any]]  # a model and its processor
PROFILED: dict[str, tuple[Build, str]] = {}  # with the path of the decoder's layers
REFUSED: dict[str, tuple[Build, str]] = {}  # with the line of the refusal
NO_SIZES = {name: value for name, value in VISION.items() if name not in ("num_channels", "image_size")}
OWN_HEADS = {name: value for name, value in LESS_TEXT.items() if name != "num_key_value_heads"}
QFORMER = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "encoder_hidden_size": 32,
}
PIXELS = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}}
CROPPED = {"size": {"shortest_edge": 28}, "crop_size": SQUARE}


def profiled(layers: str = "model.language_model.layers") -> Callable[[Build], Build]:
    return _register(PROFILED, layers)


def refused(line: str) -> Callable[[Build], Build]:
    return _register(REFUSED, line)


def _register(table: dict[str, tuple[Build, str]], value: str) -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        table[build.__name__] = build, value
        return build

    return register


def write(build: Build, folder: Path) -> Path:
    """Save model and processor into `folder`; parameters that start at zero are given values."""
    torch.manual_seed(0)
    model, processor = build()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def named(begins: bool = False, **tokens: str) -> Any:
    """A tokenizer with the attribute `NAME_token` for each of these special tokens."""
    return words(begins=begins, **{f"{name}_token": token for name, token in tokens.items()})


def siglip(**fields: Any) -> Any:
    return hf.SiglipVisionConfig(**{**VISION, **fields}, vision_use_head=False)


def tiles(processor: Any, **fields: Any) -> Any:
    """The processor of a LLaVA-NeXT."""
    images = hf.LlavaNextImageProcessor(**CROPPED, image_grid_pinpoints=PINPOINTS)
    text = template("<image>\n")
    return processor(
        images, words("<image>"), patch_size=7, vision_feature_select_strategy="full", chat_template=text, **fields
    )


@profiled()
def granite_vision() -> Any:
    """A LLaVA-NeXT whose decoder multiplies its input, newlines too, by 12."""
    config = hf.LlavaNextConfig(
        vision_config=siglip(),
        text_config=hf.GraniteConfig(**LESS_TEXT, embedding_multiplier=12.0),
        image_token_index=IMAGE,
        image_grid_pinpoints=PINPOINTS,
        vision_feature_layer=[-2, -1],
        vision_feature_select_strategy="full",
    )
    return hf.LlavaNextForConditionalGeneration(config), tiles(hf.LlavaNextProcessor, num_additional_image_tokens=0)


@profiled()
def granite4_vision() -> Any:
    """Visual tokens are zeros to which several connectors add, each before a decoder layer of its own."""
    qformer = {**QFORMER, "num_hidden_layers": 1, "cross_attention_frequency": 1, "use_qformer_text_input": False}
    config = hf.Granite4VisionConfig(
        vision_config=siglip(hidden_size=64),
        text_config={**LESS_TEXT, "num_hidden_layers": 6, "embedding_multiplier": 12.0, "attention_multiplier": 0.35},
        qformer_config=qformer,
        image_token_index=IMAGE,
        image_grid_pinpoints=PINPOINTS,
        vision_feature_select_strategy="full",
        downsample_rate="1/2",
        deepstack_layer_map=[[-1, 2], [-2, 0]],
        spatial_target_layers=[1, 3, 4, 5],
    )
    return hf.Granite4VisionForConditionalGeneration(config), tiles(hf.Granite4VisionProcessor, downsample_rate="1/2")


@profiled()
def deepseek_vl() -> Any:
    config = hf.DeepseekVLConfig(vision_config=siglip(), text_config=hf.LlamaConfig(**TEXT), image_token_id=IMAGE)
    images = hf.DeepseekVLImageProcessor(size=SQUARE, min_size=7)
    tokens = named(image="<image>")
    text = template("<image>\n")
    processor = hf.DeepseekVLProcessor(images, tokens, num_image_tokens=16, chat_template=text)
    return hf.DeepseekVLForConditionalGeneration(config), processor


@profiled("language_model.model.decoder.layers")
def blip_2() -> Any:
    """Its decoder is OPT, which adds positions to all tokens before its first layer."""
    sizes = {
        name: value for name, value in OWN_HEADS.items() if name not in ("intermediate_size", "initializer_range")
    }
    config = hf.Blip2Config(
        vision_config={name: value for name, value in VISION.items() if name != "num_channels"},
        qformer_config=QFORMER,
        text_config=hf.OPTConfig(**sizes, ffn_dim=64, word_embed_proj_dim=WIDTH, init_std=0.2).to_dict(),
        num_query_tokens=4,
        image_token_index=IMAGE,
    )
    processor = hf.Blip2Processor(
        hf.BlipImageProcessor(size=SQUARE), words("<image>", begins=True), num_query_tokens=4
    )
    return hf.Blip2ForConditionalGeneration(config), processor


@profiled("git.encoder.layer")
def git() -> Any:
    """It puts visual tokens before the text itself, and normalises text before its first layer."""
    config = hf.GitConfig(vision_config=VISION, **OWN_HEADS)
    return hf.GitForCausalLM(config), hf.GitProcessor(hf.CLIPImageProcessor(**CROPPED), words(begins=True))


@profiled("language_model.model.layers")
def llama4() -> Any:
    """Its processor gives pixels in bfloat16."""
    marks = ("image_start", "image_end", "tile_x_separator", "tile_y_separator")
    tokens = words("<|patch|>", "<|image|>", *(f"<|{mark}|>" for mark in marks))
    images = hf.Llama4ImageProcessor(size=SQUARE, max_patches=4)
    processor = hf.Llama4Processor(images, tokens, patch_size=7, chat_template=template("<|image|>"))
    return more_families.llama4()[0], processor


@profiled()
def molmo2() -> Any:
    """Visual features are added to the embedding of a placeholder."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    adapter = {"vision_feature_layer": [-1, -2], "hidden_size": 32, "intermediate_size": 64}
    config = hf.Molmo2Config(
        vision_config={**NO_SIZES, **heads, "image_size": [28, 28]},
        adapter_config={**adapter, **heads, "text_hidden_size": WIDTH},
        text_config={**LESS_TEXT, "head_dim": 8, "additional_vocab_size": 8},
        image_patch_id=IMAGE,
        image_start_token_id=122,
        low_res_image_start_token_id=123,
        frame_start_token_id=124,
        image_end_token_id=125,
        frame_end_token_id=126,
    )
    marks = ("im_patch", "im_col", "im_start", "low_res_im_start", "frame_start", "im_end", "frame_end")
    tokens = words(*(f"<{mark}>" for mark in marks), "<|image|>")
    images = hf.Molmo2ImageProcessor(size=SQUARE, patch_size=7, max_crops=2, overlap_margins=[1, 1])
    processor = hf.Molmo2Processor(images, hf.Molmo2VideoProcessor(), tokens, chat_template=template("<|image|>"))
    return hf.Molmo2ForConditionalGeneration(config), processor


@refused("fails on 0.png: ValueError: Image features and image tokens do not match")
def another_processor() -> Any:
    """A checkpoint whose processor writes more tokens than its model makes of an image."""
    model, processor = deepseek_vl()
    processor.num_image_tokens = 17
    return model, processor


@refused("LlavaProcessor cannot prepare an image: TypeError: ")
def unfinished_processor() -> Any:
    """A checkpoint whose processor was saved without the size of a patch."""
    images, tokens = hf.CLIPImageProcessor(**CROPPED), words("<image>")
    processor = hf.LlavaProcessor(images, tokens, chat_template=template("<image>\n"))
    return more_families.tiny("llava")[0], processor
