"""Registers the model with transformers' Auto classes; whatever loads checkpoints imports it."""

from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor, LlavaProcessor

from modeling_aligned_llava.configuration_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.loading.upstream import require
from modeling_aligned_llava.modeling_aligned_llava import AlignedLlavaForConditionalGeneration, AlignedLlavaModel


require(__name__)

AutoConfig.register("aligned_llava", AlignedLlavaConfig)
AutoModel.register(AlignedLlavaConfig, AlignedLlavaModel)
AutoModelForImageTextToText.register(AlignedLlavaConfig, AlignedLlavaForConditionalGeneration)
AutoProcessor.register(AlignedLlavaConfig, LlavaProcessor)

# With this, save_pretrained copies the modelling files beside the weights.
AlignedLlavaConfig.register_for_auto_class()
AlignedLlavaModel.register_for_auto_class("AutoModel")
AlignedLlavaForConditionalGeneration.register_for_auto_class("AutoModelForImageTextToText")
