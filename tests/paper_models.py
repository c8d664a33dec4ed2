"""The paper's backbones as configurations, and the models of its recipes on the meta device."""

from functools import cache

from transformers import LlamaConfig, Qwen2Config, SiglipVisionConfig

from benchmarks.shapes import SIZES, SO400M
from eval.options import read_recipe
from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from train.cost import meta_model


TOWER = SiglipVisionConfig(**SO400M | {"num_hidden_layers": 26}, vision_use_head=False)  # as assembly leaves it
DECODERS = {
    # Llama's rows and the image token, padded to a multiple of 64
    "llama-3.2-3b": LlamaConfig(**SIZES["3b"]["text"] | {"vocab_size": 128_320}),
    "qwen2.5-7b": Qwen2Config(**SIZES["7b"]["text"]),
}


@cache
def paper_config(backbone: str) -> AlignedLlavaConfig:
    """The configuration that assembly makes of the paper's backbone."""
    text = DECODERS[backbone]
    return AlignedLlavaConfig(
        vision_config=TOWER, text_config=text, tie_word_embeddings=text.tie_word_embeddings, text_norm=1.0
    )


@cache
def paper_model(backbone: str, stage: str) -> AlignedLlavaForConditionalGeneration:
    """The model of a recipe on the meta device."""
    settings = read_recipe(backbone, stage)
    rates = {pattern: float(rate) for pattern, rate in settings["learning_rates"].items()}
    return meta_model(paper_config(backbone), rates, settings["frozen"], bf16=True, lora=settings.get("lora"))
