"""Tokenizers as they were saved, whatever model they lie beside."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config


class SavedTokenizer:
    """`AutoTokenizer` that believes tokenizer.json.

    AutoTokenizer goes by the model type and gives, for instance, every Qwen2 model Qwen's own text splitting, even
    when tokenizer.json says otherwise.
    """

    @staticmethod
    def from_pretrained(source: str | Path, **kwargs: Any) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a folder or Hub id; keyword arguments and errors are those of `AutoTokenizer`."""
        saved_class = get_tokenizer_config(source).get("tokenizer_class")
        generic = saved_class in ("TokenizersBackend", "PreTrainedTokenizerFast")
        return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(source, **kwargs)
