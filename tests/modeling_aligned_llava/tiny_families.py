"""One tiny random model, with its family's own processor, of every family that `align` or the adapters serve."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from PIL import Image

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of
from tests.modeling_aligned_llava.harness import remote_llava
from tests.modeling_aligned_llava.tiny_parts import (
    END,
    GLM_IDS,
    IMAGE,
    LESS_TEXT,
    MROPE,
    PINPOINTS,
    QWEN_IDS,
    QWEN_VISION,
    SQUARE,
    START,
    TEXT,
    VIDEO,
    VISION,
    VOCABULARY,
    WIDTH,
    clip,
    clip_llava,
    glm_processor,
    mistral,
    model_of,
    next_llava,
    patches,
    pixtral_processor,
    pixtral_tower,
    processor_of,
    qwen_processor,
    siglip,
    siglip_llava,
    words,
)


Build = Callable[[], tuple[Any, Any]]  # a model and its processor
BUILDERS: dict[str, Build] = {}


def family(build: Build) -> Build:
    BUILDERS[build.__name__] = build
    return build


def random_pair(build: Build | str) -> tuple[Any, Any]:
    """A model in eval mode and its processor, the same at every call; parameters that start at zero are given values.

    Args:
        build: what makes them, or the name of a family of this file.
    """
    torch.manual_seed(0)
    model, processor = BUILDERS[build]() if isinstance(build, str) else build()
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.02)
    return model.eval(), processor


def tiny(build: Build | str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model of `random_pair`, and its inputs for one image and some text."""
    model, processor = random_pair(build)
    noise = torch.randint(256, (28, 28, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    asked = ImageQuestion("noise", lambda: Image.fromarray(noise.numpy()))
    inputs = inputs_of(processor, asked, "cpu", torch.float32)
    inputs.pop("labels", None)  # PaliGemma's processor makes some
    return model, inputs


def write_checkpoint(build: Build | str, folder: Path) -> Path:
    """Save the model and the processor of `random_pair` into `folder`."""
    for part in random_pair(build):
        part.save_pretrained(folder)
    return folder


@family
def llava() -> Any:
    return model_of("Llava", clip(), hf.LlamaConfig(**TEXT), image_token_index=IMAGE), clip_llava()


@family
def remote_code() -> Any:
    """Loaded with the code in its own folder."""
    text = hf.LlamaConfig(**TEXT)
    config = remote_llava.RemoteLlavaConfig(vision_config=clip(), text_config=text, image_token_index=IMAGE)
    remote_llava.RemoteLlavaConfig.register_for_auto_class()
    remote_llava.RemoteLlavaForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")
    remote_llava.RemoteLlavaProcessor.register_for_auto_class()
    model = remote_llava.RemoteLlavaForConditionalGeneration(config)
    return model, clip_llava(remote_llava.RemoteLlavaProcessor)


@family
def aligned_llava() -> Any:
    config = AlignedLlavaConfig(
        vision_config=siglip(),
        text_config=hf.Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        vision_feature_layer=-2,
        vision_feature_select_strategy="full",
        method="norm",
    )
    return AlignedLlavaForConditionalGeneration(config), siglip_llava()


@family
def pixtral() -> Any:
    """Pixtral's checkpoints have the model type `llava` and images of any resolution."""
    fields = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    return model_of("Llava", pixtral_tower(), mistral(), image_token_index=IMAGE, **fields), pixtral_processor(merge=1)


@family
def mistral3() -> Any:
    model = model_of("Mistral3", pixtral_tower(), mistral(), image_token_index=IMAGE, spatial_merge_size=2)
    return model, pixtral_processor(merge=2)


@family
def llava_next() -> Any:
    fields = {"image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS}
    return model_of("LlavaNext", clip(), mistral(), **fields), next_llava(class_token=True)


@family
def llava_onevision() -> Any:
    fields = {"image_token_index": IMAGE, "video_token_index": VIDEO, "image_grid_pinpoints": PINPOINTS}
    model = model_of("LlavaOnevision", siglip(), hf.Qwen2Config(**TEXT), **fields)
    images, videos = {"size": SQUARE, "image_grid_pinpoints": PINPOINTS}, {"size": SQUARE}
    fields = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    tokens = words("<image>", "<video>")
    return model, processor_of("LlavaOnevision", images, tokens, "<image>\n", videos, **fields)


def qwen(name: str, vision: dict[str, Any], ids: dict[str, int] = QWEN_IDS, **rope: Any) -> Any:
    text = {**TEXT, "rope_parameters": {**MROPE, **rope}}
    return model_of(name, {**QWEN_VISION, **vision}, text, **ids)


@family
def qwen2_vl() -> Any:
    model = qwen("Qwen2VL", {"embed_dim": 32, "mlp_ratio": 2})
    return model, qwen_processor(hf.Qwen2VLProcessor, hf.Qwen2VLVideoProcessor)


@family
def qwen2_5_vl() -> Any:
    model = qwen("Qwen2_5_VL", {"window_size": 28, "fullatt_block_indexes": [1]})
    return model, qwen_processor(hf.Qwen2_5_VLProcessor, hf.Qwen2VLVideoProcessor)


@family
def qwen3_vl() -> Any:
    vision = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    model = qwen("Qwen3VL", vision, mrope_interleaved=True)
    return model, qwen_processor(hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor)


@family
def glm4v() -> Any:
    sizes = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56 * 2}}
    return qwen("Glm4v", {"image_size": 28}, GLM_IDS, partial_rotary_factor=1.0), glm_processor("Glm4v", sizes)


@family
def internvl() -> Any:
    vision = {**VISION, "image_size": [28, 28], "patch_size": [7, 7]}
    fields = {"image_token_id": IMAGE, "image_seq_length": 4}
    model = model_of("InternVL", vision, hf.Qwen2Config(**TEXT), **fields)
    edges = {"start_image": "<img>", "end_image": "</img>"}
    tokens = words(context_image="<IMG_CONTEXT>", video="<video>", **edges)
    text, videos = "<IMG_CONTEXT>\n", {"size": SQUARE}
    return model, processor_of("InternVL", patches(), tokens, text, videos, image_seq_length=4)


def idefics(name: str, videos: bool = False) -> Any:
    model = model_of(name, dict(VISION), hf.LlamaConfig(**TEXT), image_token_id=IMAGE, scale_factor=2)
    tokens = words("<image>", "<video>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
    images = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}
    return model, processor_of(name, images, tokens, "<image>", images if videos else None, image_seq_len=4)


@family
def idefics3() -> Any:
    return idefics("Idefics3")


@family
def smolvlm() -> Any:
    return idefics("SmolVLM", videos=True)


@family
def paligemma() -> Any:
    """Without a chat template, as Google's checkpoints."""
    fields = {"image_token_index": IMAGE, "projection_dim": WIDTH, "hidden_size": WIDTH}
    text = hf.GemmaConfig(**{**TEXT, "initializer_range": 0.3})  # its answers differ by question
    model = model_of("PaliGemma", siglip(projection_dim=WIDTH), text, **fields)
    model.model.multi_modal_projector.linear.weight.data *= 2  # otherwise its tokens have the norm of text by chance
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    return model, hf.PaliGemmaProcessor(images, words("<image>", begins=True))


@family
def gemma3() -> Any:
    ids = {"image_token_index": IMAGE, "boi_token_index": START, "eoi_token_index": END}
    text = hf.Gemma3TextConfig(**TEXT, sliding_window=64)
    model = model_of("Gemma3", siglip(), text, mm_tokens_per_image=4, **ids)
    for layer in model.model.language_model.layers:  # attention that is sharp enough to tell questions apart
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, 30.0)
    tokens = words(
        begins=True, image="<image_soft_token>", video="<video>", boi="<start_of_image>", eoi="<end_of_image>"
    )
    processor = processor_of("Gemma3", {"size": SQUARE}, tokens, "<start_of_image>", image_seq_length=4)
    processor.chat_template = "<s>" + processor.chat_template
    return model, processor


@family
def ovis2() -> Any:
    """Its text has `<image>` for an image, which the processor replaces by these tokens."""
    vision = {**VISION, "vocab_size": 64, "hidden_stride": 2, "num_visual_indicator_tokens": 2}
    fields = {"image_token_id": IMAGE, "visual_indicator_token_ids": [START, END]}
    fields |= {"vocab_size": VOCABULARY, "hidden_size": WIDTH}
    model = model_of("Ovis2", vision, hf.Qwen2Config(**TEXT), **fields)
    tokens = words("<IMG_ATOM>", "<IMG_COL>", "<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_ROW>", "<image>")
    images = {"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 2}
    return model, processor_of("Ovis2", images, tokens, "<image>\n", image_seq_length=4)


@family
def aya_vision() -> Any:
    text = hf.CohereConfig(**LESS_TEXT)
    fields = {"downsample_factor": 2, "vision_feature_layer": -1}
    fields |= {"adapter_layer_norm_eps": 1e-6, "alignment_intermediate_size": WIDTH}
    model = model_of("AyaVision", siglip(), text, image_token_index=IMAGE, **fields)
    tokens = words("<|IMG_PATCH|>", "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE", "TILE_GLOBAL")
    sizes = {"patch_size": 7, "img_size": 28, "downsample_factor": 2}
    return model, processor_of("AyaVision", patches(), tokens, "<image>", **sizes)


LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 10000.0}
# Language models for the text tasks, by the way in which their decoder differs.
DECODERS: dict[str, Any] = {
    "llama": hf.LlamaConfig(**TEXT),
    "qwen2": hf.Qwen2Config(**TEXT),
    "qwen3": hf.Qwen3Config(**TEXT),
    "mistral": mistral(),
    "gemma": hf.GemmaConfig(**TEXT),
    "gemma2": hf.Gemma2Config(**TEXT, sliding_window=16),
    "olmo2": hf.Olmo2Config(**TEXT),
    "phi3": hf.Phi3Config(**TEXT, rope_parameters=LONG_ROPE, original_max_position_embeddings=32),
}


def write_decoder(name: str, folder: Path) -> Path:
    """Save a language model and its tokenizer into `folder`."""
    torch.manual_seed(0)
    hf.AutoModelForCausalLM.from_config(DECODERS[name]).save_pretrained(folder)
    words().save_pretrained(folder)
    return folder
