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
from tests.modeling_aligned_llava.tiny_families import IMAGE, TEXT, VISION, VOCABULARY, WIDTH, tiny


SQUARE = {"height": 28, "width": 28}
PINPOINTS = [[28, 28], [56, 28]]
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


@family
def llava() -> Any:
    return tiny("llava")[0], _llava_processor(hf.LlavaProcessor)


@family
def remote_code() -> Any:
    """Loaded with the code in its own folder."""
    config = remote_llava.RemoteLlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION), text_config=hf.LlamaConfig(**TEXT), image_token_index=IMAGE
    )
    remote_llava.RemoteLlavaConfig.register_for_auto_class()
    remote_llava.RemoteLlavaForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")
    remote_llava.RemoteLlavaProcessor.register_for_auto_class()
    model = remote_llava.RemoteLlavaForConditionalGeneration(config)
    return model, _llava_processor(remote_llava.RemoteLlavaProcessor)


def _llava_processor(processor: Any) -> Any:
    return processor(
        hf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE),
        words("<image>"),
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>\n"),
    )


@family
def aligned_llava() -> Any:
    config = AlignedLlavaConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        vision_feature_layer=-2,
        vision_feature_select_strategy="full",
        method="norm",
    )
    processor = hf.LlavaProcessor(
        hf.SiglipImageProcessor(size=SQUARE),
        words("<image>"),
        patch_size=7,
        vision_feature_select_strategy="full",
        num_additional_image_tokens=0,
        chat_template=template("<image>\n"),
    )
    return AlignedLlavaForConditionalGeneration(config), processor


@family
def pixtral() -> Any:
    """Pixtral's checkpoints have the model type `llava` and images of any resolution."""
    config = hf.LlavaConfig(
        vision_config=hf.PixtralVisionConfig(**_pixtral_vision()),
        text_config=hf.MistralConfig(**TEXT, sliding_window=None),
        image_token_index=IMAGE,
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return hf.LlavaForConditionalGeneration(config), _pixtral_processor(merge=1)


@family
def mistral3() -> Any:
    return _without_window(tiny("mistral3")[0]), _pixtral_processor(merge=2)


def _without_window(model: Any) -> Any:
    """As in Mistral's checkpoints from version 0.2 on."""
    model.config.text_config.sliding_window = None
    return model


def _pixtral_vision() -> dict[str, Any]:
    return {name: value for name, value in VISION.items() if name != "num_channels"} | {"head_dim": 8}


def _pixtral_processor(merge: int) -> Any:
    return hf.PixtralProcessor(
        hf.PixtralImageProcessor(size={"longest_edge": 28}, patch_size={"height": 7, "width": 7}),
        words("[IMG]", "[IMG_BREAK]", "[IMG_END]", begins=True),
        patch_size=7,
        spatial_merge_size=merge,
        chat_template=template("[IMG]"),
    )


@family
def llava_next() -> Any:
    images = hf.LlavaNextImageProcessor(
        size={"shortest_edge": 28}, crop_size=SQUARE, image_grid_pinpoints=PINPOINTS, do_center_crop=True
    )
    processor = hf.LlavaNextProcessor(
        images,
        words("<image>"),
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>\n"),
    )
    return _without_window(tiny("llava_next")[0]), processor


@family
def llava_onevision() -> Any:
    processor = hf.LlavaOnevisionProcessor(
        hf.LlavaOnevisionImageProcessor(size=SQUARE, image_grid_pinpoints=PINPOINTS),
        words("<image>", "<video>"),
        hf.LlavaOnevisionVideoProcessor(size=SQUARE),
        num_image_tokens=16,
        vision_feature_select_strategy="full",
        chat_template=template("<image>\n"),
    )
    return tiny("llava_onevision")[0], processor


def _qwen(name: str, processor: Any, images: Any, videos: Any) -> Any:
    tokens = words("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    text = template("<|vision_start|><|image_pad|><|vision_end|>")
    sizes = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}}
    return tiny(name)[0], processor(images(**sizes), tokens, videos(**sizes), chat_template=text)


@family
def qwen2_vl() -> Any:
    return _qwen("qwen2_vl", hf.Qwen2VLProcessor, hf.Qwen2VLImageProcessor, hf.Qwen2VLVideoProcessor)


@family
def qwen2_5_vl() -> Any:
    return _qwen("qwen2_5_vl", hf.Qwen2_5_VLProcessor, hf.Qwen2VLImageProcessor, hf.Qwen2VLVideoProcessor)


@family
def qwen3_vl() -> Any:
    return _qwen("qwen3_vl", hf.Qwen3VLProcessor, hf.Qwen2VLImageProcessor, hf.Qwen3VLVideoProcessor)


@family
def glm4v() -> Any:
    marks = [f"<|{edge}_of_{kind}|>" for kind in ("image", "video") for edge in ("begin", "end")]
    tokens = words("<|image|>", "<|video|>", *marks)
    sizes = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56 * 2}}
    images, videos = hf.Glm4vImageProcessor(**sizes), hf.Glm4vVideoProcessor(**sizes)
    text = template("<|begin_of_image|><|image|><|end_of_image|>")
    return tiny("glm4v")[0], hf.Glm4vProcessor(images, tokens, videos, chat_template=text)


@family
def internvl() -> Any:
    tokens = words(
        **{"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
        **{"start_image_token": "<img>", "end_image_token": "</img>"},
    )
    processor = hf.InternVLProcessor(
        hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=2),
        tokens,
        hf.InternVLVideoProcessor(size=SQUARE),
        image_seq_length=4,
        chat_template=template("<IMG_CONTEXT>\n"),
    )
    return tiny("internvl")[0], processor


IDEFICS_TOKENS = ("<image>", "<video>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>")
IDEFICS_IMAGES = {"size": {"longest_edge": 56}, "max_image_size": {"longest_edge": 28}}


@family
def idefics3() -> Any:
    processor = hf.Idefics3Processor(
        hf.Idefics3ImageProcessor(**IDEFICS_IMAGES),
        words(*IDEFICS_TOKENS),
        image_seq_len=4,
        chat_template=template("<image>"),
    )
    return tiny("idefics3")[0], processor


@family
def smolvlm() -> Any:
    processor = hf.SmolVLMProcessor(
        hf.SmolVLMImageProcessor(**IDEFICS_IMAGES),
        words(*IDEFICS_TOKENS),
        hf.SmolVLMVideoProcessor(**IDEFICS_IMAGES),
        image_seq_len=4,
        chat_template=template("<image>"),
    )
    return tiny("smolvlm")[0], processor


@family
def paligemma() -> Any:
    """Without a chat template, as Google's checkpoints."""
    images = hf.SiglipImageProcessor(size=SQUARE)
    images.image_seq_length = 16
    return tiny("paligemma")[0], hf.PaliGemmaProcessor(images, words("<image>", begins=True))


@family
def gemma3() -> Any:
    marks = {"boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokens = words(begins=True, **{"image_token": "<image_soft_token>", "video_token": "<video>"}, **marks)
    text = "<s>" + template("<start_of_image>")
    images = hf.Gemma3ImageProcessor(size=SQUARE)
    model = tiny("gemma3")[0]
    for layer in model.model.language_model.layers:  # attention that is sharp enough to tell questions apart
        torch.nn.init.constant_(layer.self_attn.q_norm.weight, 30.0)
    return model, hf.Gemma3Processor(images, tokens, chat_template=text, image_seq_length=4)


@family
def ovis2() -> Any:
    """Its text has `<image>` for an image, which the processor replaces by these tokens."""
    tokens = words("<IMG_ATOM>", "<IMG_COL>", "<IMG_START>", "<IMG_END>", "<IMG_GRID>", "<IMG_ROW>", "<image>")
    images = hf.Ovis2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=2)
    return tiny("ovis2")[0], hf.Ovis2Processor(images, tokens, chat_template=template("<image>\n"), image_seq_length=4)


@family
def aya_vision() -> Any:
    tokens = ("<|IMG_PATCH|>", "<image>", "<|START_OF_IMG|>", "<|END_OF_IMG|>", "TILE", "TILE_GLOBAL")
    config = hf.AyaVisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION, vision_use_head=False),
        text_config=hf.CohereConfig(**{name: value for name, value in TEXT.items() if name != "head_dim"}),
        image_token_index=IMAGE,
        downsample_factor=2,
        vision_feature_layer=-1,
        adapter_layer_norm_eps=1e-6,
        alignment_intermediate_size=WIDTH,
    )
    processor = hf.AyaVisionProcessor(
        hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=2),
        words(*tokens),
        patch_size=7,
        img_size=28,
        downsample_factor=2,
        chat_template=template("<image>"),
    )
    return hf.AyaVisionForConditionalGeneration(config), processor


def _gemma2() -> Any:
    return hf.Gemma2Config(**TEXT, sliding_window=16)


def _phi3() -> Any:
    factors = [1.0] * 4
    rope = {"rope_type": "longrope", "short_factor": factors, "long_factor": [2.0] * 4, "rope_theta": 10000.0}
    return hf.Phi3Config(**TEXT, rope_parameters=rope, original_max_position_embeddings=32)


# Language models for the text tasks, by the way in which their decoder differs.
DECODERS: dict[str, Callable[[], Any]] = {
    "llama": lambda: hf.LlamaConfig(**TEXT),
    "qwen2": lambda: hf.Qwen2Config(**TEXT),
    "qwen3": lambda: hf.Qwen3Config(**TEXT),
    "mistral": lambda: hf.MistralConfig(**TEXT, sliding_window=None),
    "gemma": lambda: hf.GemmaConfig(**TEXT),
    "gemma2": _gemma2,
    "olmo2": lambda: hf.Olmo2Config(**TEXT),
    "phi3": _phi3,
}


def write_decoder(name: str, folder: Path) -> Path:
    """Save a language model and its tokenizer into `folder`."""
    torch.manual_seed(0)
    hf.AutoModelForCausalLM.from_config(DECODERS[name]()).save_pretrained(folder)
    words().save_pretrained(folder)
    return folder
