"""transformers' common model tests over our class and over stock LLaVA; `test_common_model_tests.py` runs this file.

Not collected by itself: `upstream` is the tests folder of transformers' source distribution, fetched for the run.
"""

import unittest

import torch
from transformers import (
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaModel,
)
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES, MODEL_MAPPING_NAMES
from upstream.test_modeling_common import ModelTesterMixin, floats_tensor, ids_tensor

from modeling_aligned_llava import AlignedLlavaConfig, AlignedLlavaForConditionalGeneration, AlignedLlavaModel


IMAGE_TOKEN = 4

# The common tests look a class's kind (base model, model with labels) up by its name.
MODEL_MAPPING_NAMES["aligned_llava"] = AlignedLlavaModel.__name__
MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES["aligned_llava"] = AlignedLlavaForConditionalGeneration.__name__


class TinyLlava:
    """What the common tests ask for: a config, a batch with one image and then text in each row, and their sizes."""

    batch_size, image_tokens, text_tokens = 3, 4, 7
    seq_length = image_tokens + text_tokens
    hidden_size, num_hidden_layers, num_attention_heads, vocab_size = 32, 2, 4, 99
    is_training = True

    def __init__(self, config_class, **fields):
        self.config_class, self.fields = config_class, fields

    def get_config(self):
        shape = {
            "hidden_size": self.hidden_size,
            "intermediate_size": 37,
            "num_hidden_layers": self.num_hidden_layers,
            "num_attention_heads": self.num_attention_heads,
        }
        vision = CLIPVisionConfig(**shape, projection_dim=32, image_size=28, patch_size=14)
        text = LlamaConfig(**shape, vocab_size=self.vocab_size, num_key_value_heads=4, pad_token_id=1)
        return self.config_class(
            vision_config=vision,
            text_config=text,
            image_token_index=IMAGE_TOKEN,
            image_seq_length=self.image_tokens,
            vision_feature_layer=-1,
            tie_word_embeddings=False,
            **self.fields,
        )

    def prepare_config_and_inputs_for_common(self):
        text = ids_tensor([self.batch_size, self.text_tokens], self.vocab_size - 1 - IMAGE_TOKEN) + IMAGE_TOKEN + 1
        images = torch.full((self.batch_size, self.image_tokens), IMAGE_TOKEN)
        input_ids = torch.cat([images.to(text.device), text], dim=1)
        return self.get_config(), {
            "pixel_values": floats_tensor([self.batch_size, 3, 28, 28]),
            "input_ids": input_ids,
            "attention_mask": torch.ones_like(input_ids),
        }


class AlignedLlavaTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (AlignedLlavaModel, AlignedLlavaForConditionalGeneration)
    _is_composite = True

    def setUp(self):
        self.model_tester = TinyLlava(AlignedLlavaConfig, text_norm=0.1)  # as every saved config has


class StockLlavaTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (LlavaModel, LlavaForConditionalGeneration)
    _is_composite = True

    def setUp(self):
        self.model_tester = TinyLlava(LlavaConfig)
