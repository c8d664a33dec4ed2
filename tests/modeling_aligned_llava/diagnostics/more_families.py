"""Tiny random models of further families, one with cross-attention, and two that look like remote code."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2ForCausalLM, Qwen2Model

from tests.modeling_aligned_llava.tiny_families import (
    BUILDERS,
    END,
    IMAGE,
    START,
    TEXT,
    VIDEO,
    VISION,
    WIDTH,
    Tiny,
    pixels,
    prompt,
    square,
)


LESS_TEXT = {name: value for name, value in TEXT.items() if name != "head_dim"}
PIXTRAL = {name: value for name, value in VISION.items() if name != "num_channels"}
MORE: dict[str, Callable[[], Tiny]] = {}


def family(build: Callable[[], Tiny]) -> Callable[[], Tiny]:
    MORE[build.__name__] = build
    return build


def tiny(name: str) -> Tiny:
    """A random model in eval mode and its inputs; parameters that start at zero are given values."""
    torch.manual_seed(0)
    model, inputs = {**BUILDERS, **MORE}[name]()
    for parameter in model.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.02)
    return model.eval(), inputs


def stock_llava(vision: Any, text: Any, **fields: Any) -> Any:
    config = hf.LlavaConfig(
        vision_config=vision,
        text_config=text,
        image_token_index=IMAGE,
        vision_feature_select_strategy="full",
        **fields,
    )
    return hf.LlavaForConditionalGeneration(config)


@family
def llava_siglip_qwen2() -> Tiny:
    return stock_llava(hf.SiglipVisionConfig(**VISION), hf.Qwen2Config(**TEXT)), square(16)


@family
def llava_granite() -> Tiny:
    """Its decoder multiplies its input, visual tokens too, by 12."""
    config = hf.LlavaConfig(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.GraniteConfig(**LESS_TEXT, embedding_multiplier=12.0),
        image_token_index=IMAGE,
        vision_feature_select_strategy="full",
    )
    return hf.LlavaForConditionalGeneration(config), square(16)


@family
def llava_siglip_qwen3() -> Tiny:
    model = stock_llava(hf.SiglipVisionConfig(**VISION), hf.Qwen3Config(**TEXT), vision_feature_layer=-1)
    return model, square(16)


@family
def llava_pixtral() -> Tiny:
    vision = hf.PixtralVisionConfig(**PIXTRAL, head_dim=8)
    model = stock_llava(vision, hf.MistralConfig(**TEXT), vision_feature_layer=-1)
    return model, {**square(16), "image_sizes": torch.tensor([[28, 28]])}


@family
def vipllava() -> Tiny:
    config = hf.VipLlavaConfig(
        vision_config=hf.CLIPVisionConfig(**VISION),
        text_config=hf.LlamaConfig(**TEXT),
        image_token_index=IMAGE,
        vision_feature_layers=[-1, -2],
    )
    return hf.VipLlavaForConditionalGeneration(config), square(16)


@family
def idefics2() -> Tiny:
    resampler = {
        "hidden_size": WIDTH,
        "resampler_n_latents": 4,
        "resampler_depth": 1,
        "resampler_n_heads": 4,
        "resampler_head_dim": 8,
        "num_key_value_heads": 2,
    }
    config = hf.Idefics2Config(
        vision_config=dict(VISION),
        text_config=hf.MistralConfig(**TEXT),
        image_token_id=IMAGE,
        perceiver_config=resampler,
    )
    return hf.Idefics2ForConditionalGeneration(config), {**prompt(4), "pixel_values": pixels(1, 1, 3, 28, 28)}


@family
def kimi_k25() -> Tiny:
    text = hf.DeepseekV3Config(
        vocab_size=TEXT["vocab_size"],
        hidden_size=WIDTH,
        intermediate_size=64,
        moe_intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        n_routed_experts=4,
        num_experts_per_tok=2,
        n_group=1,
        topk_group=1,
        kv_lora_rank=16,
        q_lora_rank=32,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=16,
        first_k_dense_replace=1,
    )
    vision = {
        "patch_size": 7,
        "pos_emb_height": 4,
        "pos_emb_width": 4,
        "pos_emb_time": 2,
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "intermediate_size": 64,
    }
    config = hf.Kimi_K25Config(
        vision_config=vision,
        text_config=text,
        projection_hidden_size=32,
        image_token_id=IMAGE,
        video_token_id=VIDEO,
        vision_start_token_id=START,
        vision_end_token_id=END,
    )
    inputs = {**prompt(4), "pixel_values": pixels(16, 3, 7, 7), "image_grid_thw": torch.tensor([[1, 4, 4]])}
    return hf.Kimi_K25ForConditionalGeneration(config), inputs


@family
def aya_vision() -> Tiny:
    config = hf.AyaVisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.Cohere2Config(**LESS_TEXT),
        image_token_index=IMAGE,
    )
    return hf.AyaVisionForConditionalGeneration(config), square(4)


@family
def cohere2_vision() -> Tiny:
    config = hf.Cohere2VisionConfig(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.Cohere2Config(**LESS_TEXT),
        image_token_id=IMAGE,
        alignment_intermediate_size=64,
        downsample_factor=2,
    )
    return hf.Cohere2VisionForConditionalGeneration(config), square(4)


@family
def lfm2_vl() -> Tiny:
    vision = hf.Siglip2VisionConfig(
        hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_patches=16, patch_size=7
    )
    text = hf.Lfm2Config(**LESS_TEXT, layer_types=["conv", "full_attention"])
    config = hf.Lfm2VlConfig(vision_config=vision, text_config=text, image_token_id=IMAGE, projector_hidden_size=32)
    inputs = {
        **prompt(4),
        "pixel_values": pixels(1, 16, 3 * 49),
        "spatial_shapes": torch.tensor([[4, 4]]),
        "pixel_attention_mask": torch.ones(1, 16, dtype=torch.long),
    }
    return hf.Lfm2VlForConditionalGeneration(config), inputs


@family
def llama4() -> Tiny:
    vision = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vision_output_dim": 32,
        "image_size": 28,
        "patch_size": 7,
        "projector_input_dim": 32,
        "projector_output_dim": 32,
        "pixel_shuffle_ratio": 0.5,
    }
    config = hf.Llama4Config(
        vision_config=vision,
        text_config={**TEXT, "intermediate_size_mlp": 64, "num_local_experts": 2},
        image_token_index=IMAGE,
        boi_token_index=START,
        eoi_token_index=END,
    )
    return hf.Llama4ForConditionalGeneration(config), square(4)


@family
def got_ocr2() -> Tiny:
    vision = {
        "hidden_size": 32,
        "output_channels": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "image_size": 64,
        "patch_size": 16,
        "mlp_dim": 64,
        "window_size": 2,
        "global_attn_indexes": [1],
    }
    config = hf.GotOcr2Config(vision_config=vision, text_config=hf.Qwen2Config(**TEXT), image_token_index=IMAGE)
    return hf.GotOcr2ForConditionalGeneration(config), {**prompt(1), "pixel_values": pixels(1, 3, 64, 64)}


def mllama() -> Tiny:
    """Cross-attention: no visual token stands among the text."""
    vision = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_global_layers": 1,
        "attention_heads": 4,
        "image_size": 28,
        "patch_size": 7,
        "max_num_tiles": 1,
        "intermediate_layers_indices": [0],
        "vision_output_dim": 64,
        "supported_aspect_ratios": [[1, 1]],
    }
    config = hf.MllamaConfig(
        vision_config=vision, text_config={**LESS_TEXT, "cross_attention_layers": [1]}, image_token_index=IMAGE
    )
    inputs = {
        **prompt(1),
        "pixel_values": pixels(1, 1, 1, 3, 28, 28),
        "aspect_ratio_ids": torch.ones(1, 1, dtype=torch.long),
        "aspect_ratio_mask": torch.ones(1, 1, 1, dtype=torch.long),
        "cross_attention_mask": torch.ones(1, prompt(1)["input_ids"].shape[1], 1, 1, dtype=torch.long),
    }
    return hf.MllamaForConditionalGeneration(config).eval(), inputs


class OriginalLlava(PreTrainedModel):
    """As the LLaVA repository does: the id -200, which is no row of the embeddings, is expanded inside the model."""

    config_class = Qwen2Config

    def __init__(self, config: Qwen2Config):
        super().__init__(config)
        self.model = Qwen2Model(config)
        self.vision_tower = nn.Sequential(nn.Conv2d(3, 24, 7, 7), nn.Flatten(2))
        self.mm_projector = nn.Sequential(nn.Linear(24, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.lm_head = nn.Linear(WIDTH, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_decoder(self) -> nn.Module:
        return self.model

    def forward(self, input_ids, pixel_values, attention_mask=None, **kwargs):
        visual = self.mm_projector(self.vision_tower(pixel_values).transpose(1, 2))
        place = int((input_ids[0] == -200).nonzero())
        before, after = (self.model.embed_tokens(part) for part in (input_ids[:, :place], input_ids[:, place + 1 :]))
        states = self.model(inputs_embeds=torch.cat([before, visual, after], 1), use_cache=False)
        return self.lm_head(states.last_hidden_state)


class ContextTokenModel(PreTrainedModel):
    """As InternVL's remote code does: the id of the image token is given to the model object, not to its config."""

    config_class = Qwen2Config

    def __init__(self, config: Qwen2Config):
        super().__init__(config)
        self.vision_model = nn.Sequential(nn.Conv2d(3, 24, 7, 7), nn.Flatten(2))
        self.mlp1 = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, WIDTH))
        self.language_model = Qwen2ForCausalLM(config)
        self.img_context = IMAGE
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.language_model.get_input_embeddings()

    def forward(self, input_ids, pixel_values, attention_mask=None, **kwargs):
        states = self.get_input_embeddings()(input_ids).clone()
        states[input_ids == self.img_context] = self.mlp1(self.vision_model(pixel_values).transpose(1, 2)).flatten(
            0, 1
        )
        return self.language_model(inputs_embeds=states, attention_mask=attention_mask, use_cache=False)


def original_llava() -> tuple[PreTrainedModel, dict, int, int]:
    """Model, inputs, and the range of its visual tokens: the first position and the one after the last."""
    torch.manual_seed(0)
    ids = torch.tensor([[5, 6, 7, -200, 8, 9, 10, 11]])
    inputs = {"input_ids": ids, "pixel_values": pixels(1, 3, 28, 28)}
    return OriginalLlava(hf.Qwen2Config(**TEXT)).eval(), inputs, 3, 3 + 16


def context_token_model() -> tuple[PreTrainedModel, dict, int, int]:
    torch.manual_seed(0)
    return ContextTokenModel(hf.Qwen2Config(**TEXT)).eval(), square(16), 4, 4 + 16
