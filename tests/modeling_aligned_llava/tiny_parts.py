"""What the tiny random models of all families are made of: settings, towers, decoders, tokenizers and processors.

Images are a few patches of 7 pixels.
"""

from typing import Any

import transformers as hf
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors


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
QWEN_VISION = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 7,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": WIDTH,
    "initializer_range": 0.2,
}


def without(settings: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}


LESS_TEXT = without(TEXT, "head_dim")
PINPOINTS = [[28, 28], [56, 28]]
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
VIDEO_IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
QWEN_IDS = {**VIDEO_IDS, "vision_start_token_id": START, "vision_end_token_id": END}
GLM_IDS = {**VIDEO_IDS, "image_start_token_id": START, "image_end_token_id": END}
GLM_IDS |= {"video_start_token_id": 124, "video_end_token_id": 125}
SQUARE = {"height": 28, "width": 28}
CROPPED = {"size": {"shortest_edge": 28}, "crop_size": SQUARE}
PIXELS = {"patch_size": 7, "size": {"shortest_edge": 28 * 28, "longest_edge": 56 * 56}}


def model_of(family: str, vision: Any, text: Any, **fields: Any) -> Any:
    """A random model of the class that transformers names after the family."""
    config = getattr(hf, f"{family}Config")(vision_config=vision, text_config=text, **fields)
    return getattr(hf, f"{family}ForConditionalGeneration")(config)


def clip() -> Any:
    return hf.CLIPVisionConfig(**VISION)


def siglip(**fields: Any) -> Any:
    """A tower without the pooling head, which no family reads."""
    return hf.SiglipVisionConfig(**{**VISION, **fields}, vision_use_head=False)


def pixtral_tower() -> Any:
    return hf.PixtralVisionConfig(**without(VISION, "num_channels"), head_dim=8)


def mistral() -> Any:
    """Without a window, as in Mistral's checkpoints from version 0.2 on."""
    return hf.MistralConfig(**TEXT, sliding_window=None)


def words(*special: str, begins: bool = False, **named: str) -> Any:
    """A tokenizer of ASCII characters; `special` and `named` tokens have the ids from `IMAGE` on, in this order.

    Args:
        begins: it adds a beginning-of-sequence token to every text, as Llama's does.
        named: the tokenizer has these as attributes too, `NAME_token`.
    """
    spell = pre_tokenizers.ByteLevel(add_prefix_space=False).pre_tokenize_str
    tokens = ["<pad>", "<s>", "<|im_end|>", "<|im_start|>"]
    tokens += [spell(chr(code))[0][0] for code in (10, *range(32, 127))]
    tokens += [f"<unused{index}>" for index in range(len(tokens), IMAGE)]
    tokens += [*special, *named.values()]
    tokens += [f"<unused{index}>" for index in range(len(tokens), VOCABULARY)]
    backend = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    settings = {"pad_token": "<pad>", "eos_token": "<|im_end|>"}
    if begins:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        settings |= {"bos_token": "<s>"}
    if named:
        settings |= {"extra_special_tokens": {f"{name}_token": token for name, token in named.items()}}
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
    more = {"additional_special_tokens": ["<|im_start|>", *special]}
    tokenizer.add_special_tokens(more, replace_extra_special_tokens=False)
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


def clip_llava(processor: Any = hf.LlavaProcessor) -> Any:
    return like_llava(processor, hf.CLIPImageProcessor(size=SQUARE, crop_size=SQUARE), class_token=True)


def siglip_llava() -> Any:
    return like_llava(hf.LlavaProcessor, hf.SiglipImageProcessor(size=SQUARE), class_token=False)


def next_llava(class_token: bool, processor: Any = hf.LlavaNextProcessor, **fields: Any) -> Any:
    images = hf.LlavaNextImageProcessor(**CROPPED, image_grid_pinpoints=PINPOINTS)
    return like_llava(processor, images, class_token, **fields)


def pixtral_processor(merge: int) -> Any:
    images = {"size": {"longest_edge": 28}, "patch_size": {"height": 7, "width": 7}}
    tokens = words("[IMG]", "[IMG_BREAK]", "[IMG_END]", begins=True)
    return processor_of("Pixtral", images, tokens, "[IMG]", patch_size=7, spatial_merge_size=merge)


def qwen_processor(processor: Any, videos: Any) -> Any:
    tokens = words("<|image_pad|>", "<|video_pad|>", "<|vision_start|>", "<|vision_end|>")
    text = template("<|vision_start|><|image_pad|><|vision_end|>")
    return processor(hf.Qwen2VLImageProcessor(**PIXELS), tokens, videos(**PIXELS), chat_template=text)


def glm_processor(family: str, sizes: dict[str, Any]) -> Any:
    marks = [f"<|{edge}_of_{kind}|>" for kind in ("image", "video") for edge in ("begin", "end")]
    text = "<|begin_of_image|><|image|><|end_of_image|>"
    return processor_of(family, sizes, words("<|image|>", "<|video|>", *marks), text, sizes)


def patches() -> Any:
    """The image processor of InternVL and of those who took it over."""
    return hf.GotOcr2ImageProcessor(size=SQUARE, crop_to_patches=True, min_patches=1, max_patches=2)
