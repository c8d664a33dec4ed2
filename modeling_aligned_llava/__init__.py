"""Norm-aligned LLaVA (arXiv 2512.08374); importing the package registers it with the Auto classes."""

from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor, LlavaProcessor

from .configuration_aligned_llava import AlignedLlavaConfig
from .connectors import align, load_aligned
from .inspection.text_stream import mean_stream_norm
from .methods import method_fields, method_names
from .modeling_aligned_llava import AlignedLlavaForConditionalGeneration, AlignedLlavaModel
from .norm_alignment import GlobalWeightCompensatedLayerNorm, mean_embedding_norm


AutoConfig.register("aligned_llava", AlignedLlavaConfig)
AutoModel.register(AlignedLlavaConfig, AlignedLlavaModel)
AutoModelForImageTextToText.register(AlignedLlavaConfig, AlignedLlavaForConditionalGeneration)
AutoProcessor.register(AlignedLlavaConfig, LlavaProcessor)

# With this, save_pretrained copies the modelling files beside the weights.
AlignedLlavaConfig.register_for_auto_class()
AlignedLlavaModel.register_for_auto_class("AutoModel")
AlignedLlavaForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")

__all__ = [
    "AlignedLlavaConfig",
    "AlignedLlavaForConditionalGeneration",
    "AlignedLlavaModel",
    "GlobalWeightCompensatedLayerNorm",
    "align",
    "load_aligned",
    "mean_embedding_norm",
    "mean_stream_norm",
    "method_fields",
    "method_names",
]
