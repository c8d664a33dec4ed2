"""Tiny random checkpoints, each with its family's own processor, of families that the registry does not have.

Images are a few patches of 7 pixels. `PROFILED` are measured; `REFUSED` have no ratio, for the reason in their line.
"""

from collections.abc import Callable
from typing import Any

import pytest
import transformers as hf

from tests.modeling_aligned_llava.tiny_families import BUILDERS, Build
from tests.modeling_aligned_llava.tiny_parts import (
    CROPPED,
    END,
    IMAGE,
    LESS_TEXT,
    MROPE,
    PINPOINTS,
    PIXELS,
    QWEN_IDS,
    QWEN_VISION,
    SQUARE,
    START,
    TEXT,
    VIDEO_IDS,
    VISION,
    VOCABULARY,
    WIDTH,
    model_of,
    next_llava,
    processor_of,
    qwen_processor,
    siglip,
    siglip_llava,
    without,
    words,
)


PROFILED: dict[str, tuple[Build, str]] = {}  # with the path of the decoder's layers
REFUSED: dict[str, tuple[Build, str]] = {}  # with the line of the refusal
NO_SIZES = without(VISION, "num_channels", "image_size")
OWN_HEADS = without(LESS_TEXT, "num_key_value_heads")
SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
QFORMER = {**SIZES, "vocab_size": VOCABULARY, "encoder_hidden_size": 32}
ROPE = {**MROPE, "mrope_section": [1, 1, 2]}
SAM = {"hidden_size": 32, "output_channels": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 64}
SAM |= {"global_attn_indexes": [], "initializer_range": 0.02}
# Marks around images and sounds, by the names that Gemma's tokenizers have for them.
GEMMA_MARKS = {f"{edge}{kind}": f"<{edge}{kind}>" for kind in ("i", "a") for edge in ("bo", "eo")}


def into(table: dict[str, tuple[Build, str]], value: str = "model.language_model.layers") -> Callable[[Build], Build]:
    def register(build: Build) -> Build:
        table[build.__name__] = build, value
        return build

    return register


def stock_llava(text: Any, **fields: Any) -> Any:
    fields |= {"image_token_index": IMAGE, "vision_feature_select_strategy": "full"}
    return model_of("Llava", siglip(), text, **fields), siglip_llava()


@into(PROFILED)
def llava_siglip_qwen2() -> Any:
    return stock_llava(hf.Qwen2Config(**TEXT))


@into(PROFILED)
def llava_granite() -> Any:
    """Its decoder multiplies its input, visual tokens too, by 12."""
    return stock_llava(hf.GraniteConfig(**LESS_TEXT, embedding_multiplier=12.0))


@into(PROFILED)
def granite_vision() -> Any:
    """A LLaVA-NeXT whose decoder multiplies its input, newlines too, by 12."""
    text = hf.GraniteConfig(**LESS_TEXT, embedding_multiplier=12.0)
    fields = {"image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS}
    fields |= {"vision_feature_layer": [-2, -1], "vision_feature_select_strategy": "full"}
    return model_of("LlavaNext", siglip(), text, **fields), next_llava(class_token=False)


@into(PROFILED)
def granite4_vision() -> Any:
    """Visual tokens are zeros to which several connectors add, each before a decoder layer of its own."""
    text = {**LESS_TEXT, "num_hidden_layers": 6, "embedding_multiplier": 12.0, "attention_multiplier": 0.35}
    qformer = {**QFORMER, "num_hidden_layers": 1, "cross_attention_frequency": 1, "use_qformer_text_input": False}
    fields = {"qformer_config": qformer, "image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS}
    fields |= {"vision_feature_select_strategy": "full", "downsample_rate": "1/2"}
    fields |= {"deepstack_layer_map": [[-1, 2], [-2, 0]], "spatial_target_layers": [1, 3, 4, 5]}
    processor = next_llava(False, hf.Granite4VisionProcessor, downsample_rate="1/2")
    return model_of("Granite4Vision", siglip(hidden_size=64), text, **fields), processor


@into(PROFILED)
def deepseek_vl() -> Any:
    images = {"size": SQUARE, "min_size": 7}
    processor = processor_of("DeepseekVL", images, words(image="<image>"), "<image>\n", num_image_tokens=16)
    return model_of("DeepseekVL", siglip(), hf.LlamaConfig(**TEXT), image_token_id=IMAGE), processor


@into(PROFILED)
def gemma4() -> Any:
    text = {**TEXT, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4, "global_head_dim": 8}
    text |= {"sliding_window": 64, "layer_types": ["sliding_attention", "full_attention"]}
    vision = {**NO_SIZES, "num_key_value_heads": 4, "head_dim": 8}
    vision |= {"pooling_kernel_size": 2, "position_embedding_size": 32}
    ids = {**VIDEO_IDS, "boi_token_id": START, "eoi_token_id": END}
    ids |= {"audio_token_id": 124, "boa_token_id": 125, "eoa_token_index": 126}
    tokens = words(begins=True, image="<image>", video="<|video|>", audio="<audio>", **GEMMA_MARKS)
    sizes = {"patch_size": 7, "max_soft_tokens": 70, "pooling_kernel_size": 2}
    sounds = hf.Gemma4AudioFeatureExtractor()
    processor = processor_of("Gemma4", sizes, tokens, "<image>", sizes, feature_extractor=sounds)
    processor.chat_template = "<s>" + processor.chat_template
    return model_of("Gemma4", vision, text, **ids), processor


@into(PROFILED)
def qwen4_exp() -> Any:
    """Its layers read several copies of a token side by side; linear attention, in the first one, has no maps."""
    experts = {"moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "num_experts": 4}
    indexer = {"n_heads": 4, "kv_heads": 1, "head_dim": 8, "budget": 64, "compress_ratio": 4}
    copies = {"num_experts_per_tok": 2, "hc_count": 4, "hc_lowrank": 8, "ple_layer_ids": []}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    rope = {**MROPE, "mrope_interleaved": True, "partial_rotary_factor": 1.0}
    text = {**experts, **copies, **{f"indexer_{name}": value for name, value in indexer.items()}}
    text |= {**LESS_TEXT, "head_dim": 8, **linear, "linear_num_value_heads": 4, "rope_parameters": rope}
    text["layer_types"] = ["linear_attention", "full_attention"]
    model = model_of("Qwen4Exp", {**QWEN_VISION, "num_position_embeddings": 16}, text, **QWEN_IDS)
    return model, qwen_processor(hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor)


@into(PROFILED, "language_model.model.decoder.layers")
def blip_2() -> Any:
    """Its decoder is OPT, which adds positions to all tokens before its first layer."""
    sizes = without(OWN_HEADS, "intermediate_size", "initializer_range")
    text = hf.OPTConfig(**sizes, ffn_dim=64, word_embed_proj_dim=WIDTH, init_std=0.2)
    images, tokens = hf.BlipImageProcessor(size=SQUARE), words("<image>", begins=True)
    fields = {"qformer_config": QFORMER, "num_query_tokens": 4, "image_token_index": IMAGE}
    model = model_of("Blip2", without(VISION, "num_channels"), text.to_dict(), **fields)
    return model, hf.Blip2Processor(images, tokens, num_query_tokens=4)


@into(PROFILED, "text_model.model.layers")
def kosmos_2() -> Any:
    """Its processor marks the places of visual tokens in a mask, and gives them ids of other tokens."""
    text = {"vocab_size": 256, "embed_dim": WIDTH, "layers": 2, "ffn_dim": 64, "attention_heads": 4, "init_std": 0.2}
    text |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "max_position_embeddings": 256}
    tokens = words(begins=True)
    tokens.unk_token = "<unused110>"  # noqa: S105
    return model_of("Kosmos2", VISION, text), hf.Kosmos2Processor(hf.CLIPImageProcessor(**CROPPED), tokens, 4)


@into(PROFILED, "git.encoder.layer")
def git() -> Any:
    """It puts visual tokens before the text itself, and normalises text before its first layer."""
    config = hf.GitConfig(vision_config=VISION, **OWN_HEADS)
    return hf.GitForCausalLM(config), hf.GitProcessor(hf.CLIPImageProcessor(**CROPPED), words(begins=True))


@into(PROFILED, "language_model.model.layers")
def llama4() -> Any:
    """Its processor gives pixels in bfloat16."""
    vision = {**SIZES, "intermediate_size": 128, "image_size": 28, "patch_size": 7, "pixel_shuffle_ratio": 0.5}
    vision |= {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    text = {**TEXT, "intermediate_size_mlp": 64, "num_local_experts": 2}
    ids = {"image_token_index": IMAGE, "boi_token_index": START, "eoi_token_index": END}
    marks = ("patch", "image", "image_start", "image_end", "tile_x_separator", "tile_y_separator")
    tokens = words(*(f"<|{mark}|>" for mark in marks))
    images = {"size": SQUARE, "max_patches": 4}
    return model_of("Llama4", vision, text, **ids), processor_of("Llama4", images, tokens, "<|image|>", patch_size=7)


@into(PROFILED)
def molmo2() -> Any:
    """Visual features are added to the embedding of a placeholder."""
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 8}
    adapter = {"vision_feature_layer": [-1, -2], "hidden_size": 32, "intermediate_size": 64}
    text = {**LESS_TEXT, "head_dim": 8, "additional_vocab_size": 8}
    ids = ("image_patch", "image_start_token", "low_res_image_start_token", "frame_start_token")
    ids += ("image_end_token", "frame_end_token")
    model = model_of(
        "Molmo2",
        {**NO_SIZES, **heads, "image_size": [28, 28]},
        text,
        adapter_config={**adapter, **heads, "text_hidden_size": WIDTH},
        **{f"{name}_id": token for name, token in zip(ids, (IMAGE, *range(122, 127)), strict=True)},
    )
    marks = ("im_patch", "im_col", "im_start", "low_res_im_start", "frame_start", "im_end", "frame_end")
    tokens = words(*(f"<{mark}>" for mark in marks), "<|image|>")
    images = {"size": SQUARE, "patch_size": 7, "max_crops": 2, "overlap_margins": [1, 1]}
    videos = hf.Molmo2VideoProcessor()
    return model, processor_of("Molmo2", images, tokens, "<|image|>", video_processor=videos)


@into(PROFILED)
def lfm2_vl() -> Any:
    vision = hf.Siglip2VisionConfig(**SIZES, num_patches=16, patch_size=7)
    text = hf.Lfm2Config(**LESS_TEXT, layer_types=["conv", "full_attention"])
    tokens = words("<image>", "<|image_start|>", "<|image_end|>", "<|img_thumbnail|>")
    images = {"encoder_patch_size": 7, "tile_size": 28, "min_image_tokens": 2, "max_image_tokens": 4}
    processor = processor_of("Lfm2Vl", {**images, "min_tiles": 1, "max_tiles": 2}, tokens, "<image>")
    return model_of("Lfm2Vl", vision, text, image_token_id=IMAGE, projector_hidden_size=32), processor


@into(PROFILED)
def kimi_k25() -> Any:
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1}
    experts |= {"topk_group": 1, "first_k_dense_replace": 1}
    ranks = {"kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 16}
    text = hf.DeepseekV3Config(**SIZES, vocab_size=VOCABULARY, num_key_value_heads=4, **experts, **ranks)
    vision = {**SIZES, "patch_size": 7, "pos_emb_height": 4, "pos_emb_width": 4, "pos_emb_time": 2}
    sizes = {"patch_size": 7, "size": {"max_height": 28, "max_width": 28}}
    tokens = words("<|media_pad|>", "<|kimi_k25_video_placeholder|>")
    processor = processor_of("Kimi_K25", sizes, tokens, "<|media_pad|>", sizes)
    return model_of("Kimi_K25", vision, text, projection_hidden_size=32, **QWEN_IDS), processor


@into(PROFILED)
def video_llama_3() -> Any:
    vision = without(VISION, "image_size")
    tokens = words("<|image_pad|>", "<|video_pad|>")
    processor = processor_of("VideoLlama3", PIXELS, tokens, "<|image_pad|>", PIXELS)
    return model_of("VideoLlama3", vision, hf.Qwen2Config(**TEXT), **VIDEO_IDS), processor


@into(PROFILED)
def deepseek_ocr2() -> Any:
    """A trained separator follows each image."""
    experts = {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    text = {**TEXT, **experts, "mlp_layer_types": ["dense", "sparse", "sparse"]}
    vision = {"sam_config": {**SAM, "downsample_channels": [16, WIDTH]}, "encoder_config": TEXT}
    processor = processor_of("DeepseekOcr2", {}, words("<image>"), "<image>")
    return model_of("DeepseekOcr2", vision, text, image_token_id=IMAGE), processor


@into(PROFILED)
def hunyuan_vl() -> Any:
    """Its connector frames the image and ends each row with trained vectors."""
    vision = {**NO_SIZES, "num_channels": 3, "text_hidden_size": WIDTH}
    tokens = words(image="<image>", image_start="<start>", image_end="<end>")
    processor = processor_of("HunYuanVL", PIXELS, tokens, "<start><image><end>")
    return model_of("HunYuanVL", vision, {**TEXT, "rope_parameters": ROPE}, image_token_id=IMAGE), processor


@into(PROFILED)
def ernie4_5_vl_moe() -> Any:
    experts = {"moe_num_experts": 4, "moe_k": 2, "moe_num_shared_experts": 1, "moe_intermediate_size": [32, 32]}
    vision = {"depth": 2, "hidden_size": 32, "num_heads": 4, "intermediate_size": 64, "patch_size": 7}
    model = model_of("Ernie4_5_VLMoe", vision, {**LESS_TEXT, **experts, "rope_parameters": ROPE}, **VIDEO_IDS)
    edges = {f"{kind}_{edge}": f"<{kind}_{edge}>" for kind in ("image", "video") for edge in ("start", "end")}
    tokens, text = words(image="<image>", video="<video>", **edges), "<image_start><image><image_end>"
    return model, processor_of("Ernie4_5_VLMoe", PIXELS, tokens, text, {"draw_on_frames": False})


@into(PROFILED)
def step3p7() -> Any:
    """Crops and the whole image go through the connector one after the other."""
    experts = {"moe_intermediate_size": 32, "n_routed_experts": 4, "num_experts_per_tok": 2, "share_expert_dim": 32}
    kinds = {"layer_types": ["full_attention", "sliding_attention"], "mlp_layer_types": ["dense", "sparse"]}
    text = {**TEXT, **experts, **kinds, "sliding_window": 64}
    vision = {**VISION, "image_size": 56, "max_position_embeddings": 64, "mlp_ratio": 2.0}
    images = {"size": {"height": 56, "width": 56}, "patch_size": 28, "vision_patch_size": 7, "max_image_size": 112}
    tokens = words("<im_patch>", "<im_start>", "<im_end>", "<patch_start>", "<patch_end>", "<patch_newline>")
    processor = processor_of("Step3p7", images, tokens, "<im_patch>")
    return model_of("Step3p7", vision, text, image_token_id=IMAGE), processor


@into(REFUSED, "is an encoder-decoder: its visual tokens enter the encoder")
def florence2() -> Any:
    vision = {"depths": [1], "patch_size": [7], "patch_stride": [7], "patch_padding": [0], "patch_prenorm": [False]}
    vision |= {"embed_dim": [32], "num_heads": [4], "num_groups": [4], "window_size": 4, "projection_dim": WIDTH}
    layers = {f"{part}_layers": 1 for part in ("encoder", "decoder")}
    heads = {f"{part}_attention_heads": 4 for part in ("encoder", "decoder")}
    text = hf.BartConfig(vocab_size=VOCABULARY, d_model=WIDTH, **layers, **heads)
    images = hf.CLIPImageProcessor(**CROPPED)
    images.image_seq_length = 17
    processor = hf.Florence2Processor(images, words(image="<image>", begins=True))
    return model_of("Florence2", vision, text, image_token_id=IMAGE), processor


@into(REFUSED, "images enter this model by cross-attention")
def mllama() -> Any:
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "attention_heads": 4}
    vision |= {"num_global_layers": 1, "image_size": 28, "patch_size": 7, "vision_output_dim": 64}
    vision |= {"max_num_tiles": 1, "intermediate_layers_indices": [0], "supported_aspect_ratios": [[1, 1]]}
    text = {**LESS_TEXT, "cross_attention_layers": [1]}
    images, tokens = {"size": SQUARE, "max_image_tiles": 1}, words("<|image|>", "<|python_tag|>", begins=True)
    processor = processor_of("Mllama", images, tokens, "<|image|>")
    return model_of("Mllama", vision, text, image_token_index=IMAGE), processor


@into(REFUSED, "cannot be measured: it has no vision tower and no connector")
def fuyu() -> Any:
    text = hf.PersimmonConfig(**OWN_HEADS)
    config = hf.FuyuConfig(text_config=text, image_size=28, patch_size=7, image_token_id=IMAGE)
    images = hf.FuyuImageProcessor(size=SQUARE, patch_size={"height": 7, "width": 7})
    return hf.FuyuForCausalLM(config), hf.FuyuProcessor(images, words("|SPEAKER|", "|NEWLINE|"))


@into(REFUSED, "read several streams at once: a token has no one norm in them")
def gemma3n() -> Any:
    pytest.importorskip("timm")
    text = {**TEXT, "vocab_size_per_layer_input": VOCABULARY, "hidden_size_per_layer_input": 4, "laurel_rank": 4}
    text |= {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64}
    text |= {"num_kv_shared_layers": 0, "altup_num_inputs": 2}
    encoder = {"img_size": 28, "patch_size": 14, "class_token": False, "global_pool": "avg"}
    vision = {"architecture": "test_vit", "hidden_size": 64, "vocab_size": 8, "vocab_offset": VOCABULARY}
    audio = {"hidden_size": 32, "conf_num_attention_heads": 4, "conf_num_hidden_layers": 1}
    fields = {"audio_config": audio, "vision_soft_tokens_per_image": 4, "image_token_id": IMAGE, "audio_token_id": 121}
    tokens = words(begins=True, image="<image>", audio="<audio>", **GEMMA_MARKS)
    parts = {"feature_extractor": hf.Gemma3nAudioFeatureExtractor(), "image_seq_length": 4}
    processor = processor_of("Gemma3n", hf.SiglipImageProcessor(size=SQUARE), tokens, "<image>", **parts)
    return model_of("Gemma3n", {**vision, "model_args": encoder}, text, **fields), processor


@into(REFUSED, "fails on 0.png: ValueError: Image features and image tokens do not match")
def another_processor() -> Any:
    """A checkpoint whose processor writes more tokens than its model makes of an image."""
    model, processor = deepseek_vl()
    processor.num_image_tokens = 17
    return model, processor


@into(REFUSED, "Gemma4ForConditionalGeneration is a text-only model")
def gemma4_without_vision() -> Any:
    model, processor = gemma4()
    model.config.vision_config = None
    return hf.Gemma4ForConditionalGeneration(model.config), processor


# What is measured by value as well: these, and all that `align` or the adapters serve.
_ALSO = ("llava_siglip_qwen2", "llava_granite", "kimi_k25", "lfm2_vl", "llama4")
MEASURED = {**BUILDERS, **{name: PROFILED[name][0] for name in _ALSO}}
