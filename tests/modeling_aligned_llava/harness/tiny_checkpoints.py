"""A tiny random checkpoint with its processor for every family that the adapters are tested with.

The networks are those of `tiny_families.py`; the tokenizer has the ids that they expect. Each processor is that of the
family, for images of a few patches of 7 pixels.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from tests.modeling_aligned_llava.harness import remote_llava
from tests.modeling_aligned_llava.tiny_families import (
    IMAGE,
    LESS_TEXT,
    PINPOINTS,
    PIXTRAL,
    TEXT,
    VOCABULARY,
    WIDTH,
    clip,
    mistral,
    model_of,
    siglip,
    tiny,
)


SQUARE = {"height": 28, "width": 28}
CROPPED = {"size": {"shortest_edge": 28}, "crop_size": SQUARE}
PIXELS = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}}
TOKENS = {"pad_token": "<pad>", "eos_token": "<|im_end|>"}
WRITERS: dict[str, Callable[[], tuple[Any, Any]]] = {}


def family(write: Callable[[], tuple[Any, Any]]) -> Callable[[], tuple[Any, Any]]:
    WRITERS[write.__name__] = write
    return write


def write_checkpoint(name: str, folder: Path) -> Path:
    """Save the model and the processor of a family into `folder`."""
    torch.manual_seed(0)
    model, processor = WRITERS[name]()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def words(*special: str, begins: bool = False, **named: str) -> Any:
    """A tokenizer of ASCII characters; `special` and `named` tokens have the ids from `IMAGE` on, in this order.

    Args:
        begins: it adds a beginning-of-sequence token to every text, as Llama's does.
    """
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    characters = [spell(chr(code))[0][0] for code in (10, *range(32, 127))]
    reserved = ["<pad>", "<s>", "<|im_end|>", "<|im_start|>"]
    ids = {token: index for index, token in enumerate([*reserved, *characters])}
    images = {token: IMAGE + index for index, token in enumerate([*special, *named.values()])}
    assert len(ids) <= IMAGE and IMAGE + len(images) <= VOCABULARY
    ids |= {
        f"<unused{index}>": index for index in range(len(ids), VOCABULARY) if index not in images.values()
    } | images
    backend = Tokenizer(models.BPE(vocab=ids, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    if begins:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    extra = {"extra_special_tokens": named} if named else {}
    tokenizer = hf.PreTrainedTokenizerFast(
        tokenizer_object=backend, **TOKENS, **({"bos_token": "<s>"} if begins else {}), **extra
    )
    tokenizer.add_special_tokens(
        {"additional_special_tokens": ["<|im_start|>", *special]}, replace_extra_special_tokens=False
    )
    return tokenizer


def template(image: str) -> str:
    """A chat template that writes `image` for each image."""
    return (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% for c in m['content'] %}"
        "{% if c['type'] == 'image' %}{{ '" + image + "' }}{% else %}{{ c['text'] }}{% endif %}{% endfor %}"
        "{{ '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )


def processor_of(
    family: str, images: Any, tokens: Any, image: str, videos: dict[str, Any] | None = None, **fields: Any
) -> Any:
    """The processor that transformers names after the family.

    Args:
        images: settings of the family's own image processor, or an image processor.
        image: what the chat template writes for an image.
        videos: settings of the family's own video processor.
    """
    if isinstance(images, dict):
        images = getattr(hf, f"{family}ImageProcessor")(**images)
    if videos:
        fields["video_processor"] = getattr(hf, f"{family}VideoProcessor")(**videos)
    processor = getattr(hf, f"{family}Processor")
    return processor(image_processor=images, tokenizer=tokens, chat_template=template(image), **fields)


def like_llava(processor: Any, images: Any, class_token: bool, **fields: Any) -> Any:
    strategy = "default" if class_token else "full"
    fields |= {"vision_feature_select_strategy": strategy, "num_additional_image_tokens": int(class_token)}
    return processor(images, words("<image>"), chat_template=template("<image>\n"), patch_size=7, **fields)


@family
def llava() -> Any:
    return tiny("llava")[0], _clip_llava(hf.LlavaProcessor)


def _clip_llava(processor: Any) -> Any:
    return like_llava(processor, hf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE), class_token=True)


@family
def remote_code() -> Any:
    """Loaded with the code in its own folder."""
    text = hf.LlamaConfig(**TEXT)
    config = remote_llava.RemoteLlavaConfig(vision_config=clip(), text_config=text, image_token_index=IMAGE)
    remote_llava.RemoteLlavaConfig.register_for_auto_class()
    remote_llava.RemoteLlavaForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")
    remote_llava.RemoteLlavaProcessor.register_for_auto_class()
    model = remote_llava.RemoteLlavaForConditionalGeneration(config)
    return model, _clip_llava(remote_llava.RemoteLlavaProcessor)


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
    processor = like_llava(hf.LlavaProcessor, hf.SiglipImageProcessor(size=SQUARE), class_token=False)
    return AlignedLlavaForConditionalGeneration(config), processor


@family
def pixtral() -> Any:
    """Pixtral's checkpoints have the model type `llava` and images of any resolution."""
    fields = {"vision_feature_layer": -1, "vision_feature_select_strategy": "full"}
    model = model_of("Llava", hf.PixtralVisionConfig(**PIXTRAL), mistral(), image_token_index=IMAGE, **fields)
    return model, _pixtral_processor(merge=1)


@family
def mistral3() -> Any:
    return tiny("mistral3")[0], _pixtral_processor(merge=2)


def _pixtral_processor(merge: int) -> Any:
    images = {"size": {"longest_edge": 28}, "patch_size": {"height": 7, "width": 7}}
    tokens = words("[IMG]", "[IMG_BREAK]", "[IMG_END]", begins=True)
    return processor_of("Pixtral", images, tokens, "[IMG]", patch_size=7, spatial_merge_size=merge)


@family
def llava_next() -> Any:
    images = hf.LlavaNextImageProcessor(**CROPPED, image_grid_pinpoints=PINPOINTS)
    return tiny("llava_next")[0], like_llava(hf.LlavaNextProcessor, images, class_token=True)


@family
def llava_onevision() -> Any:
    images, videos = {"size": SQUARE, "image_grid_pinpoints": PINPOINTS}, {"size": SQUARE}
    fields = {"num_image_tokens": 16, "vision_feature_select_strategy": "full"}
    tokens = words("<image>", "<video>")
    return tiny("llava_onevision")[0], processor_of("LlavaOnevision", images, tokens, "<image>\n", videos, **fields)


def qwen_processor(processor: Any, videos: Any) -> Any:
    tokens = words("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    text = template("<|vision_start|><|image_pad|><|vision_end|>")
    return processor(hf.Qwen2VLImageProcessor(**PIXELS), tokens, videos(**PIXELS), chat_template=text)


@family
def qwen2_vl() -> Any:
    return tiny("qwen2_vl")[0], qwen_processor(hf.Qwen2VLProcessor, hf.Qwen2VLVideoProcessor)


@family
def qwen2_5_vl() -> Any:
    return tiny("qwen2_5_vl")[0], qwen_processor(hf.Qwen2_5_VLProcessor, hf.Qwen2VLVideoProcessor)


@family
def qwen3_vl() -> Any:
    return tiny("qwen3_vl")[0], qwen_processor(hf.Qwen3VLProcessor, hf.Qwen3VLVideoProcessor)


def glm_processor(family: str, sizes: dict[str, Any]) -> Any:
    marks = [f"<|{edge}_of_{kind}|>" for kind in ("image", "video") for edge in ("begin", "end")]
    text = "<|begin_of_image|><|image|><|end_of_image|>"
    return processor_of(family, sizes, words("<|image|>", "<|video|>", *marks), text, sizes)


@family
def glm4v() -> Any:
    sizes = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56 * 2}}
    return tiny("glm4v")[0], glm_processor("Glm4v", sizes)


def patches() -> Any:
    """The image processor of InternVL and of those who took it over."""
    return hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=2)


@family
def internvl() -> Any:
    edges = {"start_image_token": "<img>", "end_image_token": "</img>"}
    tokens = words(context_image_token="<IMG_CONTEXT>", video_token="<video>", **edges)  # noqa: S106
    text, videos = "<IMG_CONTEXT>\n", {"size": SQUARE}
    return tiny("internvl")[0], processor_of("InternVL", patches(), tokens, text, videos, image_seq_length=4)


IDEFICS_TOKENS = ("<image>", "<video>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
IDEFICS_IMAGES = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}


@family
def idefics3() -> Any:
    processor = processor_of("Idefics3", IDEFICS_IMAGES, words(*IDEFICS_TOKENS), "<image>", image_seq_len=4)
    return tiny("idefics3")[0], processor


@family
def smolvlm() -> Any:
    images, tokens = IDEFICS_IMAGES, words(*IDEFICS_TOKENS)
    return tiny("smolvlm")[0], processor_of("SmolVLM", images, tokens, "<image>", images, image_seq_len=4)


@family
def paligemma() -> Any:
    """Without a chat template, as Google's checkpoints."""
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    return tiny("paligemma")[0], hf.PaliGemmaProcessor(images, words("<image>", begins=True))


@family
def gemma3() -> Any:
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokens = words(begins=True, image_token="<image_soft_token>", video_token="<video>", **marks)  # noqa: S106
    processor = processor_of("Gemma3", {"size": SQUARE}, tokens, "<start_of_image>", image_seq_length=4)
    processor.chat_template = "<s>" + processor.chat_template
    model = tiny("gemma3")[0]
    for layer in model.model.language_model.layers:  # attention that is sharp enough to tell questions apart
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, 30.0)
    return model, processor


@family
def ovis2() -> Any:
    """Its text has `<image>` for an image, which the processor replaces by these tokens."""
    tokens = words("<IMG_ATOM>", "<IMG_COL>", "<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_ROW>", "<image>")
    images = {"size": SQUARE, "crop_to_patches": True, "min_patches": 1, "max_patches": 2}
    return tiny("ovis2")[0], processor_of("Ovis2", images, tokens, "<image>\n", image_seq_length=4)


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
