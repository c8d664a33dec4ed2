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
LESS_TEXT = {name: value for name, value in TEXT.items() if name != "head_dim"}
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
PIXTRAL = {name: value for name, value in VISION.items() if name != "num_channels"} | {"head_dim": 8}
PINPOINTS = [[28, 28], [56, 28]]
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 10000.0}
QWEN_VISION = {
    "depth": 2,
    "num_heads": 4,
    "patch_size": 7,
    "hidden_size": 32,
    "intermediate_size": 64,
    "out_hidden_size": WIDTH,
    "initializer_range": 0.2,
}
VIDEO_IDS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
QWEN_IDS = {**VIDEO_IDS, "vision_start_token_id": START, "vision_end_token_id": END}
GLM_IDS = {**VIDEO_IDS, "image_start_token_id": START, "image_end_token_id": END}
GLM_IDS |= {"video_start_token_id": 124, "video_end_token_id": 125}

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


def model_of(family: str, vision: Any, text: Any, **fields: Any) -> Any:
    """A random model of the class that transformers names after the family."""
    config = getattr(hf, f"{family}Config")(vision_config=vision, text_config=text, **fields)
    return getattr(hf, f"{family}ForConditionalGeneration")(config)


def clip() -> Any:
    return hf.CLIPVisionConfig(**VISION)


def siglip(**fields: Any) -> Any:
    """A tower without the pooling head, which no family reads."""
    return hf.SiglipVisionConfig(**{**VISION, **fields}, vision_use_head=False)


def mistral() -> Any:
    """Without a window, as in Mistral's checkpoints from version 0.2 on."""
    return hf.MistralConfig(**TEXT, sliding_window=None)


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
    return model_of("Llava", clip(), hf.LlamaConfig(**TEXT), image_token_index=IMAGE), square(16)


@family
def llava_next() -> Tiny:
    fields = {"image_token_index": IMAGE, "image_grid_pinpoints": PINPOINTS}
    return model_of("LlavaNext", clip(), mistral(), **fields), tiles()


@family
def llava_onevision() -> Tiny:
    fields = {"image_token_index": IMAGE, "video_token_index": VIDEO, "image_grid_pinpoints": PINPOINTS}
    return model_of("LlavaOnevision", siglip(), hf.Qwen2Config(**TEXT), **fields), tiles()


def qwen(name: str, vision: dict[str, Any], ids: dict[str, int] = QWEN_IDS, **rope: Any) -> Tiny:
    text = {**TEXT, "rope_parameters": {**MROPE, **rope}}
    return model_of(name, {**QWEN_VISION, **vision}, text, **ids), grid()


@family
def qwen2_vl() -> Tiny:
    return qwen("Qwen2VL", {"embed_dim": 32, "mlp_ratio": 2})


@family
def qwen2_5_vl() -> Tiny:
    return qwen("Qwen2_5_VL", {"window_size": 28, "fullatt_block_indexes": [1]})


@family
def qwen3_vl() -> Tiny:
    vision = {"num_position_embeddings": 16, "deepstack_visual_indexes": [0]}
    return qwen("Qwen3VL", vision, mrope_interleaved=True)


@family
def glm4v() -> Tiny:
    return qwen("Glm4v", {"image_size": 28}, GLM_IDS, partial_rotary_factor=1.0)


@family
def internvl() -> Tiny:
    vision = {**VISION, "image_size": [28, 28], "patch_size": [7, 7]}
    fields = {"image_token_id": IMAGE, "image_seq_length": 4}
    return model_of("InternVL", vision, hf.Qwen2Config(**TEXT), **fields), square(4)


def idefics(name: str) -> Tiny:
    model = model_of(name, dict(VISION), hf.LlamaConfig(**TEXT), image_token_id=IMAGE, scale_factor=2)
    return model, {**prompt(4), "pixel_values": pixels(1, 1, 3, 28, 28)}


@family
def idefics3() -> Tiny:
    return idefics("Idefics3")


@family
def smolvlm() -> Tiny:
    return idefics("SmolVLM")


@family
def paligemma() -> Tiny:
    fields = {"image_token_index": IMAGE, "projection_dim": WIDTH, "hidden_size": WIDTH}
    vision = siglip(projection_dim=WIDTH)
    return model_of("PaliGemma", vision, hf.GemmaConfig(**TEXT), **fields), square(16)


@family
def gemma3() -> Tiny:
    ids = {"image_token_index": IMAGE, "boi_token_index": START, "eoi_token_index": END}
    text = hf.Gemma3TextConfig(**TEXT, sliding_window=64)
    model = model_of("Gemma3", siglip(), text, mm_tokens_per_image=4, **ids)
    torch.nn.init.normal_(model.model.multi_modal_projector.mm_input_projection_weight, std=0.02)  # zeros by default
    inputs = square(4)
    return model, {**inputs, "token_type_ids": (inputs["input_ids"] == IMAGE).long()}


@family
def mistral3() -> Tiny:
    vision = hf.PixtralVisionConfig(**PIXTRAL)
    model = model_of("Mistral3", vision, mistral(), image_token_index=IMAGE, spatial_merge_size=2)
    return model, {**square(4), "image_sizes": torch.tensor([[28, 28]])}


@family
def ovis2() -> Tiny:
    vision = {**VISION, "vocab_size": 64, "hidden_stride": 2, "num_visual_indicator_tokens": 2}
    fields = {"image_token_id": IMAGE, "visual_indicator_token_ids": [START, END]}
    fields |= {"vocab_size": VOCABULARY, "hidden_size": WIDTH}
    return model_of("Ovis2", vision, hf.Qwen2Config(**TEXT), **fields), square(4)
