"""Tiny random models with the inputs of one image: LLaVAs of other backbones, further families, the first LLaVA."""

from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import nn
from transformers import PreTrainedModel, Qwen2Config, Qwen2Model

from modeling_aligned_llava.diagnostics.hooks.loading import inputs_of
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from tests.benchmark_stand_in import image_of
from tests.modeling_aligned_llava.diagnostics.measure import family_checkpoints
from tests.modeling_aligned_llava.harness.tiny_checkpoints import WRITERS
from tests.modeling_aligned_llava.tiny_families import (
    BUILDERS,
    IMAGE,
    LESS_TEXT,
    TEXT,
    WIDTH,
    Tiny,
    clip,
    model_of,
    pixels,
    siglip,
    square,
)


def stock_llava(text: Any, **fields: Any) -> Tiny:
    model = model_of("Llava", siglip(), text, image_token_index=IMAGE, vision_feature_select_strategy="full", **fields)
    return model, square(16)


def vipllava() -> Tiny:
    fields = {"image_token_index": IMAGE, "vision_feature_layers": [-1, -2]}
    return model_of("VipLlava", clip(), hf.LlamaConfig(**TEXT), **fields), square(16)


def prepared(name: str) -> Tiny:
    """A family's checkpoint, with the inputs that its processor makes of an image and a question."""
    model, processor = WRITERS[name]() if name in WRITERS else family_checkpoints.PROFILED[name][0]()
    return model, inputs_of(processor, ImageQuestion(name, lambda: image_of(1)), "cpu", torch.float32)


PREPARED = ("pixtral", "aya_vision", "idefics2", "kimi_k25", "cohere2_vision", "lfm2_vl", "llama4", "got_ocr2")
MORE: dict[str, Callable[[], Tiny]] = {
    "llava_siglip_qwen2": lambda: stock_llava(hf.Qwen2Config(**TEXT)),
    "llava_siglip_qwen3": lambda: stock_llava(hf.Qwen3Config(**TEXT), vision_feature_layer=-1),
    # Its decoder multiplies its input, visual tokens too, by 12.
    "llava_granite": lambda: stock_llava(hf.GraniteConfig(**LESS_TEXT, embedding_multiplier=12.0)),
    "vipllava": vipllava,
    **{name: lambda name=name: prepared(name) for name in PREPARED},
}


def tiny(name: str) -> Tiny:
    """A random model in eval mode and its inputs; parameters that start at zero are given values."""
    torch.manual_seed(0)
    model, inputs = {**BUILDERS, **MORE}[name]()
    family_checkpoints.fill_zeros(model)
    return model.eval(), inputs


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
