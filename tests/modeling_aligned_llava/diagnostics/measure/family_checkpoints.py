"""Tiny random checkpoints, each with its family's own processor, of families that the registry does not have.

Images are a few patches of 7 pixels. `PROFILED` are measured; `REFUSED` have no ratio, for the reason in their line.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import nn

from tests.modeling_aligned_llava.diagnostics import more_families
from tests.modeling_aligned_llava.diagnostics.more_families import LESS_TEXT
from tests.modeling_aligned_llava.harness.tiny_checkpoints import PINPOINTS, SQUARE, template, words
from tests.modeling_aligned_llava.tiny_families import (
    END,
    IMAGE,
    MROPE,
    QWEN_IDS,
    QWEN_VISION,
    START,
    TEXT,
    VIDEO,
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
def janus() -> Any:
    vq = {"embed_dim": 8, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32, "num_res_blocks": 1}
    config = hf.JanusConfig(
        vision_config={**VISION, "projection_dim": WIDTH, "mlp_ratio": 2.0},
        text_config=hf.LlamaConfig(**TEXT),
        vq_config={**vq, "channel_multiplier": [1, 1], "projection_dim": WIDTH, "image_token_embed_dim": WIDTH},
        image_token_id=IMAGE,
    )
    tokens = named(image="<image>", boi="<begin>", eoi="<end>")
    images = hf.JanusImageProcessor(size=SQUARE, min_size=7)
    text = template("<image>\n")
    processor = hf.JanusProcessor(images, tokens, num_image_tokens=16, chat_template=text)
    return hf.JanusForConditionalGeneration(config), processor


@profiled()
def deepseek_vl() -> Any:
    config = hf.DeepseekVLConfig(vision_config=siglip(), text_config=hf.LlamaConfig(**TEXT), image_token_id=IMAGE)
    images = hf.DeepseekVLImageProcessor(size=SQUARE, min_size=7)
    tokens = named(image="<image>")
    text = template("<image>\n")
    processor = hf.DeepseekVLProcessor(images, tokens, num_image_tokens=16, chat_template=text)
    return hf.DeepseekVLForConditionalGeneration(config), processor


@profiled()
def video_llava() -> Any:
    config = hf.VideoLlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
    )
    images, videos = hf.VideoLlavaImageProcessor(**CROPPED), hf.VideoLlavaVideoProcessor(**CROPPED)
    tokens = words("<image>", "<video>")
    text = template("<image>\n")
    processor = hf.VideoLlavaProcessor(images, videos, tokens, patch_size=7, chat_template=text)
    return hf.VideoLlavaForConditionalGeneration(config), processor


@profiled()
def gemma4() -> Any:
    kinds = ["sliding_attention", "full_attention"]
    per_layer = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4}
    config = hf.Gemma4Config(
        text_config={**TEXT, **per_layer, "sliding_window": 64, "global_head_dim": 8, "layer_types": kinds},
        vision_config={
            **NO_SIZES,
            "num_key_value_heads": 4,
            "head_dim": 8,
            "pooling_kernel_size": 2,
            "position_embedding_size": 32,
        },
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        boi_token_id=START,
        eoi_token_id=END,
        audio_token_id=124,
        boa_token_id=125,
        eoa_token_index=126,
    )
    marks = {f"{edge}{kind}": f"<{edge}{kind}>" for kind in ("i", "a") for edge in ("bo", "eo")}
    tokens = named(begins=True, image="<image>", video="<|video|>", audio="<audio>", **marks)
    sizes = {"patch_size": 7, "max_soft_tokens": 70, "pooling_kernel_size": 2}
    images, videos = hf.Gemma4ImageProcessor(**sizes), hf.Gemma4VideoProcessor(**sizes)
    text = "<s>" + template("<image>")
    processor = hf.Gemma4Processor(hf.Gemma4AudioFeatureExtractor(), images, tokens, videos, chat_template=text)
    return hf.Gemma4ForConditionalGeneration(config), processor


def qwen(model: Any, config: Any, **text: Any) -> Any:
    """One with linear attention, which has no maps of attention, in its first layer."""
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    rope = {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 1.0}
    kinds = {"layer_types": ["linear_attention", "full_attention"], "rope_parameters": rope}
    vision = {"hidden_size": 32, "intermediate_size": 64, "out_hidden_size": WIDTH, "num_position_embeddings": 16}
    tokens = words("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    images, videos = hf.Qwen2VLImageProcessor(**PIXELS), hf.Qwen3VLVideoProcessor(**PIXELS)
    whole = config(
        text_config={**LESS_TEXT, "head_dim": 8, **linear, "linear_num_value_heads": 4, **kinds, **text},
        vision_config={**QWEN_VISION, **vision},
        **QWEN_IDS,
    )
    placeholder = template("<|vision_start|><|image_pad|><|vision_end|>")
    return model(whole), hf.Qwen3VLProcessor(images, tokens, videos, chat_template=placeholder)


@profiled()
def qwen3_5() -> Any:
    return qwen(hf.Qwen3_5ForConditionalGeneration, hf.Qwen3_5Config)


@profiled()
def qwen4_exp() -> Any:
    """Its layers read several copies of a token side by side."""
    experts = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4}
    indexer = {"n_heads": 4, "kv_heads": 1, "head_dim": 8, "budget": 64, "compress_ratio": 4}
    return qwen(
        hf.Qwen4ExpForConditionalGeneration,
        hf.Qwen4ExpConfig,
        **experts,
        **{f"indexer_{name}": value for name, value in indexer.items()},
        num_experts_per_tok=2,
        hc_count=4,
        hc_lowrank=8,
        ple_layer_ids=[],
    )


def blip(config: Any, text: Any) -> Any:
    vision = {name: value for name, value in VISION.items() if name != "num_channels"}
    return config(
        vision_config=vision,
        qformer_config=QFORMER,
        text_config=text.to_dict(),
        num_query_tokens=4,
        image_token_index=IMAGE,
    )


@profiled("language_model.model.decoder.layers")
def blip_2() -> Any:
    """Its decoder is OPT, which adds positions to all tokens before its first layer."""
    sizes = {
        name: value for name, value in OWN_HEADS.items() if name not in ("intermediate_size", "initializer_range")
    }
    text = hf.OPTConfig(**sizes, ffn_dim=64, word_embed_proj_dim=WIDTH, init_std=0.2)
    processor = hf.Blip2Processor(
        hf.BlipImageProcessor(size=SQUARE), words("<image>", begins=True), num_query_tokens=4
    )
    return hf.Blip2ForConditionalGeneration(blip(hf.Blip2Config, text)), processor


@profiled("language_model.model.layers")
def instructblip() -> Any:
    config = blip(hf.InstructBlipConfig, hf.LlamaConfig(**TEXT))
    images = hf.BlipImageProcessor(size=SQUARE)
    processor = hf.InstructBlipProcessor(images, words("<image>", begins=True), words(), num_query_tokens=4)
    return hf.InstructBlipForConditionalGeneration(config), processor


@profiled("text_model.model.layers")
def kosmos_2() -> Any:
    """Its processor marks the places of visual tokens in a mask, and gives them ids of other tokens."""
    sizes = {"vocab_size": 256, "embed_dim": WIDTH, "layers": 2, "ffn_dim": 64, "attention_heads": 4}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = hf.Kosmos2Config(
        text_config={**sizes, **ids, "max_position_embeddings": 256, "init_std": 0.2}, vision_config=VISION
    )
    tokens = words(begins=True)
    tokens.unk_token = "<unused110>"  # noqa: S105
    processor = hf.Kosmos2Processor(hf.CLIPImageProcessor(**CROPPED), tokens, 4)
    return hf.Kosmos2ForConditionalGeneration(config), processor


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


@profiled()
def lfm2_vl() -> Any:
    sizes = {"encoder_patch_size": 7, "tile_size": 28, "min_image_tokens": 2, "max_image_tokens": 4}
    tokens = words("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
    images = hf.Lfm2VlImageProcessor(**sizes, min_tiles=1, max_tiles=2)
    return more_families.lfm2_vl()[0], hf.Lfm2VlProcessor(images, tokens, chat_template=template("<image>"))


@profiled("model.text_model.layers")
def idefics2() -> Any:
    tokens = words("<image>", "<fake_token_around_image>", "<end_of_utterance>")
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": 14, "longest_edge": 28})
    text = template("<image>")
    return more_families.idefics2()[0], hf.Idefics2Processor(images, tokens, image_seq_len=4, chat_template=text)


@profiled()
def kimi_k25() -> Any:
    sizes = {"patch_size": 7, "size": {"max_height": 28, "max_width": 28}}
    tokens = words("<|media_pad|>", "<|kimi_k25_video_placeholder|>")
    images, videos = hf.Kimi_K25ImageProcessor(**sizes), hf.Kimi_K25VideoProcessor(**sizes)
    processor = hf.Kimi_K25Processor(images, tokens, videos, chat_template=template("<|media_pad|>"))
    return more_families.kimi_k25()[0], processor


@profiled()
def cohere2_vision() -> Any:
    tokens = named(image="<image>", boi="<boi>", eoi="<eoi>", img_line_break="<line>")
    images = hf.Cohere2VisionImageProcessor(size=SQUARE, patch_size=2, max_patches=2)
    processor = hf.Cohere2VisionProcessor(images, tokens, chat_template=template("<image>"))
    return more_families.cohere2_vision()[0], processor


@profiled()
def aria() -> Any:
    """Its processor knows images of 490 and 980 pixels alone."""
    experts = {"moe_num_experts": 2, "moe_topk": 1, "moe_num_shared_experts": 1}
    config = hf.AriaConfig(
        vision_config={**VISION, "image_size": 980, "patch_size": 70},
        text_config={**LESS_TEXT, **experts},
        projector_patch_to_query_dict={196: 4},
        image_token_index=IMAGE,
    )
    tokens, text = named(image="<image>"), template("<image>")
    processor = hf.AriaProcessor(hf.AriaImageProcessor(), tokens, size_conversion={980: 4}, chat_template=text)
    return hf.AriaForConditionalGeneration(config), processor


@profiled()
def glm46v() -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 64, "image_size": 28, "out_hidden_size": WIDTH}
    rope = {**MROPE, "partial_rotary_factor": 1.0}
    config = hf.Glm46VConfig(
        text_config={**TEXT, "model_type": "glm4v_text", "rope_parameters": rope},
        vision_config={**QWEN_VISION, **vision, "model_type": "glm4v_vision"},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        image_start_token_id=START,
        image_end_token_id=END,
        video_start_token_id=124,
        video_end_token_id=125,
    )
    marks = [f"<|{edge}_of_{kind}|>" for kind in ("image", "video") for edge in ("begin", "end")]
    images, videos = hf.Glm46VImageProcessor(**PIXELS), hf.Glm46VVideoProcessor(**PIXELS)
    text = template("<|begin_of_image|><|image|><|end_of_image|>")
    processor = hf.Glm46VProcessor(images, words("<|image|>", "<|video|>", *marks), videos, chat_template=text)
    return hf.Glm46VForConditionalGeneration(config), processor


@profiled()
def video_llama_3() -> Any:
    vision = {name: value for name, value in VISION.items() if name != "image_size"}
    text = hf.Qwen2Config(**TEXT)
    config = hf.VideoLlama3Config(vision_config=vision, text_config=text, image_token_id=IMAGE, video_token_id=VIDEO)
    images, videos = hf.VideoLlama3ImageProcessor(**PIXELS), hf.VideoLlama3VideoProcessor(**PIXELS)
    tokens = words("<|image_pad|>", "<|video_pad|>")
    processor = hf.VideoLlama3Processor(images, tokens, videos, chat_template=template("<|image_pad|>"))
    return hf.VideoLlama3ForConditionalGeneration(config), processor


SAM = {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 64}
SAM |= {"global_attn_indexes": [], "initializer_range": 0.02}


@profiled()
def got_ocr2() -> Any:
    config = hf.GotOcr2Config(
        vision_config=SAM,
        text_config=hf.Qwen2Config(**TEXT).to_dict() | {"model_type": "qwen2"},
        image_token_index=IMAGE,
    )
    images = hf.GotOcr2ImageProcessor(size={"height": 1024, "width": 1024})
    return hf.GotOcr2ForConditionalGeneration(config), hf.GotOcr2Processor(
        images, words("<imgpad>"), chat_template=template("<imgpad>")
    )


@profiled()
def deepseek_ocr2() -> Any:
    """A trained separator follows each image."""
    experts = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    config = hf.DeepseekOcr2Config(
        vision_config={
            "sam_config": {**SAM, "downsample_channels": [16, TEXT["hidden_size"]]},
            "encoder_config": TEXT,
        },
        text_config={**TEXT, **experts, "mlp_layer_types": ["dense", "sparse", "sparse"]},
        image_token_id=IMAGE,
    )
    processor = hf.DeepseekOcr2Processor(
        hf.DeepseekOcr2ImageProcessor(), words("<image>"), chat_template=template("<image>")
    )
    return hf.DeepseekOcr2ForConditionalGeneration(config), processor


@profiled()
def minimax_m3_vl() -> Any:
    text = {**TEXT, "head_dim": 8, "rotary_dim": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
    text |= {"dense_intermediate_size": 64, "shared_intermediate_size": 32}
    vision = {**VISION, "patch_size": 7}
    config = hf.MiniMaxM3VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        projector_hidden_size=64,
    )
    images, videos = hf.MiniMaxM3VLImageProcessor(**PIXELS), hf.MiniMaxM3VLVideoProcessor(**PIXELS)
    tokens = words(*(f"]<]{each}[>[" for each in ("image", "video", "start of image", "end of image")))
    processor = hf.MiniMaxM3VLProcessor(images, tokens, videos, chat_template=template("]<]image[>["))
    return hf.MiniMaxM3SparseForConditionalGeneration(config), processor


@profiled()
def hunyuan_vl() -> Any:
    """Its connector frames the image and ends each row with trained vectors."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    text = {**TEXT, "rope_parameters": rope}
    vision = {**NO_SIZES, "num_channels": 3, "patch_size": 7, "text_hidden_size": TEXT["hidden_size"]}
    config = hf.HunYuanVLConfig(text_config=text, vision_config=vision, image_token_id=IMAGE)
    images = hf.HunYuanVLImageProcessor(**PIXELS)
    tokens = named(image="<image>", image_start="<start>", image_end="<end>")
    processor = hf.HunYuanVLProcessor(images, tokens, chat_template=template("<start><image><end>"))
    return hf.HunYuanVLForConditionalGeneration(config), processor


@profiled()
def ernie4_5_vl_moe() -> Any:
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_intermediate_size": [32, 32]}
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}
    config = hf.Ernie4_5_VLMoeConfig(
        text_config={**LESS_TEXT, **experts, "rope_parameters": rope},
        vision_config={"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64, "patch_size": 7},
        image_token_id=IMAGE,
        video_token_id=VIDEO,
    )
    edges = {f"{kind}_{edge}": f"<{kind}_{edge}>" for kind in ("image", "video") for edge in ("start", "end")}
    images = hf.Ernie4_5_VLMoeImageProcessor(**PIXELS)
    videos = hf.Ernie4_5_VLMoeVideoProcessor(draw_on_frames=False)
    tokens, text = named(image="<image>", video="<video>", **edges), template("<image_start><image><image_end>")
    processor = hf.Ernie4_5_VLMoeProcessor(images, tokens, videos, chat_template=text)
    return hf.Ernie4_5_VLMoeForConditionalGeneration(config), processor


@profiled()
def step3p7() -> Any:
    """Crops and the whole image go through the connector one after the other."""
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "share_expert_dim": 32}
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]}
    config = hf.Step3p7Config(
        text_config={**TEXT, **experts, **kinds, "sliding_window": 64},
        vision_config={**VISION, "image_size": 56, "max_position_embeddings": 64, "mlp_ratio": 2.0},
        image_token_id=IMAGE,
    )
    images = hf.Step3p7ImageProcessor(
        size={"height": 56, "width": 56}, patch_size=28, vision_patch_size=7, max_image_size=112
    )
    tokens = words("<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>")
    processor = hf.Step3p7Processor(images, tokens, chat_template=template("<im_patch>"))
    return hf.Step3p7ForConditionalGeneration(config), processor


@refused("is an encoder-decoder: its visual tokens enter the encoder")
def florence2() -> Any:
    one = {"depths": [1], "patch_size": [7], "patch_stride": [7], "patch_padding": [0], "patch_prenorm": [False]}
    vision = {**one, "embed_dim": [32], "num_heads": [4], "num_groups": [4], "window_size": 4, "projection_dim": WIDTH}
    text = hf.BartConfig(
        vocab_size=VOCABULARY,
        d_model=WIDTH,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    )
    config = hf.Florence2Config(vision_config=vision, text_config=text, image_token_id=IMAGE)
    images = hf.CLIPImageProcessor(**CROPPED)
    images.image_seq_length = 17
    processor = hf.Florence2Processor(images, named(image="<image>", begins=True))
    return hf.Florence2ForConditionalGeneration(config), processor


@refused("images enter this model by cross-attention")
def mllama() -> Any:
    images = hf.MllamaImageProcessor(size=SQUARE, max_image_tiles=1)
    tokens = words("<|image|>", "<|python_tag|>", begins=True)
    return more_families.mllama()[0], hf.MllamaProcessor(images, tokens, chat_template=template("<|image|>"))


@refused("cannot be measured: it has no vision tower and no connector")
def fuyu() -> Any:
    config = hf.FuyuConfig(
        text_config=hf.PersimmonConfig(**OWN_HEADS), image_size=28, patch_size=7, image_token_id=IMAGE
    )
    images = hf.FuyuImageProcessor(size=SQUARE, patch_size={"height": 7, "width": 7})
    return hf.FuyuForCausalLM(config), hf.FuyuProcessor(images, words("|SPEAKER|", "|NEWLINE|"))


@refused("cannot be measured: its images are tokens of the text vocabulary")
def emu3() -> Any:
    vq = {"codebook_size": 16, "base_channels": 32, "num_res_blocks": 1, "attn_resolutions": [], "hidden_size": 32}
    config = hf.Emu3Config(
        text_config=TEXT, vq_config={**vq, "channel_multiplier": [1, 1]}, vocabulary_map={"<image>": IMAGE}
    )
    marks = {"image_wrapper": "<wrap>", "eof": "<eof>"}
    tokens = named(begins=True, image="<image>", boi="<boi>", eoi="<eoi>", **marks)
    processor = hf.Emu3Processor(hf.Emu3ImageProcessor(), tokens, chat_template=template("<image>"))
    return hf.Emu3ForConditionalGeneration(config), processor


@refused("read several streams at once: a token has no one norm in them")
def gemma3n() -> Any:
    pytest.importorskip("timm")
    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "num_kv_shared_layers": 0}
    per_layer = {"vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4}
    encoder = {"img_size": 28, "patch_size": 14, "class_token": False, "global_pool": "avg"}
    config = hf.Gemma3nConfig(
        text_config={**TEXT, **kinds, **per_layer, "laurel_rank": 4, "altup_num_inputs": 2},
        vision_config={"architecture": "test_vit", "hidden_size": 64, "vocab_size": 8, "vocab_offset": VOCABULARY}
        | {"model_args": encoder},
        audio_config={"hidden_size": 32, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 1},
        vision_soft_tokens_per_image=4,
        image_token_id=IMAGE,
        audio_token_id=121,
    )
    marks = {f"{edge}{kind}": f"<{edge}{kind}>" for kind in ("i", "a") for edge in ("bo", "eo")}
    tokens = named(begins=True, image="<image>", audio="<audio>", **marks)
    images, text = hf.SiglipImageProcessor(size=SQUARE), template("<image>")
    processor = hf.Gemma3nProcessor(
        hf.Gemma3nAudioFeatureExtractor(), images, tokens, chat_template=text, image_seq_length=4
    )
    return hf.Gemma3nForConditionalGeneration(config), processor


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
    return more_families.vipllava()[0], processor


@refused("Gemma4ForConditionalGeneration is a text-only model")
def gemma4_without_vision() -> Any:
    model, processor = gemma4()
    model.config.vision_config = None
    return hf.Gemma4ForConditionalGeneration(model.config), processor
