"""How rows of training data are stored and tokenized in these tests."""

from datasets import Features, List, Value

from modeling_aligned_llava.loading.chat_templates import chat_template
from train.data.images import RowImages
from train.data.llava_tokens import LlavaTokens
from train.data.prepared import TrainingData, open_training_data
from train.data.quarantine import Quarantine
from train.data.sources import read_sources


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


def row(*texts: str, **fields) -> dict:
    """One in LLaVA's format with these turns and keys."""
    return {**fields, "conversations": turns(*texts)}


def open_data(path, processor, template: str = "tinyworld", max_length: int | None = None) -> TrainingData:
    """The rows of a file, prepared in a cache beside it; their images lie beside it too."""
    sources = read_sources(str(path), str(path.parent))
    return open_training_data(sources, tokenization(processor, max_length, template), path.parent / "cache")


def row_images(data: TrainingData, folder, limit: float = 0.5) -> RowImages:
    """What opens the images of these rows; its quarantine lies in the folder."""
    return RowImages(data, Quarantine(folder / "quarantine.jsonl", data.opened, limit), seed=42)


def texts(data: TrainingData, processor) -> list[str]:
    """The rows as the model reads them."""
    return [processor.tokenizer.decode(sample["input_ids"]) for sample in data.dataset]
