"""How rows of training data are stored and tokenized in these tests."""

from datasets import Features, List, Value

from modeling_aligned_llava.loading.chat_templates import chat_template
from train.data.llava_tokens import LlavaTokens


def features(**columns) -> Features:
    """Of rows with an id, turns and these columns."""
    turns = List({"from": Value("string"), "value": Value("string")})
    return Features({"id": Value("string"), "conversations": turns, **columns})


def turns(*texts: str) -> list[dict[str, str]]:
    """A conversation in LLaVA's format, which the human begins."""
    return [{"from": ("human", "gpt")[number % 2], "value": text} for number, text in enumerate(texts)]


def tokenization(processor, max_length: int | None = None, template: str = "tinyworld") -> LlavaTokens:
    """With four tokens an image, as the tiny tower makes them."""
    return LlavaTokens(processor.tokenizer, chat_template(template), processor.image_token_id, 4, max_length)
