"""The paper's backbones as configurations, and the models of its recipes on the meta device."""

from functools import cache

from transformers import LlamaConfig, Qwen2Config, SiglipVisionConfig

from eval.options import read_recipe
from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration
from train.cost import meta_model


TOWER = SiglipVisionConfig(  # SigLIP-SO400M-patch14-384 without its last layer and head
    hidden_size=1152,
    intermediate_size=4304,
    num_hidden_layers=26,
    num_attention_heads=16,
    image_size=384,
    patch_size=14,
    vision_use_head=False,
)
DECODERS = {
    "llama-3.2-3b": LlamaConfig(
        hidden_size=3072,
        intermediate_size=8192,
        num_hidden_layers=28,
        num_attention_heads=24,
        num_key_value_heads=8,
        head_dim=128,
        vocab_size=128_320,  # 128,256 and the image token, padded to a multiple of 64
        tie_word_embeddings=True,
    ),
    "qwen2.5-7b": Qwen2Config(
        hidden_size=3584,
        intermediate_size=18_944,
        num_hidden_layers=28,
        num_attention_heads=28,
        num_key_value_heads=4,
        vocab_size=152_064,
        tie_word_embeddings=False,
    ),
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
