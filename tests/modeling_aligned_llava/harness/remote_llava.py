"""A family that is not in transformers: a LLaVA under another name, saved with this file as its code."""

from transformers import LlavaConfig, LlavaForConditionalGeneration, LlavaProcessor


class RemoteLlavaConfig(LlavaConfig):
    model_type = "remote_llava"


class RemoteLlavaForConditionalGeneration(LlavaForConditionalGeneration):
    config_class = RemoteLlavaConfig


class RemoteLlavaProcessor(LlavaProcessor):
    pass
