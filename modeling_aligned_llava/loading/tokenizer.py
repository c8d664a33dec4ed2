"""Load the saved tokenizer, whatever the model type."""

from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import get_tokenizer_config


class SavedTokenizer:
    """`AutoTokenizer` that follows tokenizer.json.

    AutoTokenizer follows the model type instead: every Qwen2 model, for example, gets Qwen's own text splitting, even
    if tokenizer.json specifies another.
    """

    @staticmethod
    def from_pretrained(source: str | Path, **kwargs: Any) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a folder or Hub id; keyword arguments and errors are those of `AutoTokenizer`."""
        saved_class = get_tokenizer_config(source, revision=kwargs.get("revision")).get("tokenizer_class")
        generic = saved_class in ("TokenizersBackend", "PreTrainedTokenizerFast")
        return (PreTrainedTokenizerFast if generic else AutoTokenizer).from_pretrained(source, **kwargs)
