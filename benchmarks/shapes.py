"""Sizes of the decoder and the tower of models with random weights."""

from typing import Any


SO400M: dict[str, Any] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 14,
}
SIZES: dict[str, dict[str, dict[str, Any]]] = {
    "40m": {
        "text": {
            "hidden_size": 384,
            "intermediate_size": 1024,
            "num_hidden_layers": 6,
            "num_attention_heads": 6,
            "num_key_value_heads": 6,
            "vocab_size": 32_000,
            "tie_word_embeddings": False,
        },
        "vision": {
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 5,
            "num_attention_heads": 4,
            "image_size": 224,
            "patch_size": 14,
        },
    },
    "toy": {
        "text": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": 512,
            "tie_word_embeddings": False,
        },
        "vision": {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 2,
            "image_size": 56,
            "patch_size": 14,
        },
    },
    "3b": {  # Llama-3.2-3B
        "text": {
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "vocab_size": 128_256,
            "tie_word_embeddings": True,
        },
        "vision": SO400M,
    },
    "7b": {  # Qwen2.5-7B
        "text": {
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
            "vocab_size": 152_064,
            "tie_word_embeddings": False,
        },
        "vision": SO400M,
    },
}
