"""Tiny random models of further families, one with cross-attention, and one that looks like remote code."""

from collections.abc import Callable

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2Model

from tests.modeling_aligned_llava.tiny_families import (
    BUILDERS,
    END,
    IMAGE,
    START,
    TEXT,
    VISION,
    WIDTH,
    Tiny,
    pixels,
    prompt,
    square,
)


LESS_TEXT = {name: value for name, value in TEXT.items() if name != "head_dim"}
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


@family
def llava_siglip_qwen2() -> Tiny:
    config = hf.LlavaConfig(
        vision_config=hf.SiglipVisionConfig(**VISION),
        text_config=hf.Qwen2Config(**TEXT),
        image_token_index=IMAGE,
        vision_feature_select_strategy="full",
    )
    return hf.LlavaForConditionalGeneration(config), square(16)


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


def original_llava() -> tuple[PreTrainedModel, dict, int, int]:
    """Model, inputs, and the range of its visual tokens: the first position and the one after the last."""
    torch.manual_seed(0)
    ids = torch.tensor([[5, 6, 7, -200, 8, 9, 10, 11]])
    inputs = {"input_ids": ids, "pixel_values": pixels(1, 3, 28, 28)}
    return OriginalLlava(hf.Qwen2Config(**TEXT)).eval(), inputs, 3, 3 + 16
