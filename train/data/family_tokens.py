"""Rows for a model of another family than ours: its chat template writes the text, its processor the visual tokens.

Supervised are the answers and their end tokens (`train.data.chat_text`). The text is stored; the collator calls the
processor.
"""

import inspect
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar

from datasets import Features, List, Value
from PIL import Image
from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.image_slots import ImageSlots, Size
from modeling_aligned_llava.inference.prompt import image_tokens, lacks_special_tokens
from modeling_aligned_llava.inspection.model_parts import image_token_id
from modeling_aligned_llava.loading.chat_templates import Span, template_of
from train.data.chat_text import ChatText
from train.data.row import BadRow, text_of
from train.data.row_tokens import IGNORE_INDEX, Kind, OpenImages, Rows, RowTokens, control_tokens


@dataclass(frozen=True)
class FamilyTokens(RowTokens):
    """How rows become the text that a family's processor reads.

    Args:
        processor: of the model.
        config: of the model.
        max_length: see `RowTokens`.

    Raises:
        UserError: there is no chat template, and the processor takes no answer as a suffix either.
    """

    processor: Any
    config: Any
    max_length: int | None

    columns: ClassVar[Features] = Features(
        {
            "text": Value("string"),
            "answers": List(List(Value("int32"))),  # characters of the text
            "places": List(List(Value("int32"))),  # the same, once the processor has written the visual tokens
            "length": Value("int32"),
        }
    )
    reads_sizes: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self._chat is None and not self.takes_suffix:
            raise UserError(f"{self.config.model_type}: neither its processor nor its tokenizer has a chat template")

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """That of the processor."""
        return self.processor.tokenizer

    @property
    def takes_suffix(self) -> bool:
        """Whether the answer is an argument of its own, in place of a template (PaliGemma)."""
        return self._chat is None and "suffix" in inspect.signature(self.processor.__call__).parameters

    def stored(self, row: dict[str, Any]) -> dict[str, Any]:
        """Of a row `{"messages", "images", "sizes"}` its `text`, the characters of its `answers`, its `length`."""
        messages, sizes = row["messages"], [tuple(size) for size in row["sizes"]]
        if control := self._control.search(text_of(messages)):
            raise BadRow("the text holds a control token", control.group())
        text, answers = self._chat(messages) if self._chat else self._prompt_and_suffix(messages)
        if text.count(self.processor.image_token) != len(sizes):
            slots = text.count(self.processor.image_token)
            raise UserError(f"the chat template writes {slots} images for a row of {len(sizes)}")
        try:
            length = self._length(text, answers, sizes)
        except (BadRow, UserError):
            raise
        except Exception as error:  # each processor raises its own
            raise BadRow("the model's processor refuses it", " ".join(str(error).split())) from error
        self.check_length(length)
        places = answers if self.takes_suffix else list(self._moved(answers, text, tuple(sizes)))
        return {"text": text, "answers": answers, "places": places, "length": length}

    def _length(self, text: str, answers: list[Span], sizes: list[Size]) -> int:
        """The number of tokens with the visual ones of images of these sizes."""
        if self.takes_suffix:
            blank = [Image.new("RGB", size) for size in sizes]
            return self.tensors([text], [answers], [answers], [blank])["input_ids"].shape[1]
        written = self._slots.fill(text, tuple(sizes))
        special = lacks_special_tokens(self.tokenizer, written)
        ids = self.tokenizer(written, add_special_tokens=special)["input_ids"]
        if (last := max({*ids} - {image_token_id(self.config)})) >= self.config.get_text_config().vocab_size:
            token = str(self.tokenizer.convert_ids_to_tokens(last))
            raise BadRow("the model has no embedding for a token: resize_token_embeddings", token)
        return len(ids)

    @cached_property
    def _slots(self) -> ImageSlots:
        return ImageSlots(self.processor)

    @cached_property
    def _control(self) -> re.Pattern:
        reserved = [re.escape(token) for token in image_tokens(self.processor, self.config)]
        return re.compile("|".join([control_tokens(self.tokenizer).pattern, *reserved]))

    @cached_property
    def _chat(self) -> ChatText | None:
        template = template_of(self.processor)
        return None if template is None else ChatText(self.tokenizer, template)

    def ending(self) -> tuple[str, str] | None:
        """See `RowTokens`."""
        return None if self._chat is None else self._chat.ending()

    def _prompt_and_suffix(self, messages: list[dict[str, Any]]) -> tuple[str, list[Span]]:
        if len(messages) != 2:
            raise BadRow("the model has no chat template: it takes one question and one answer", filtered=True)
        asked, answer = messages
        parts = [self.processor.image_token if p["type"] == "image" else p["text"] for p in asked["content"]]
        text, suffix = "".join(parts), text_of([answer])
        return text + suffix, [(len(text), len(text) + len(suffix))]

    def settings(self) -> tuple[Any, ...]:
        """Everything that the stored rows depend on besides the code."""
        backend = self.tokenizer.backend_tokenizer.to_str()  # type: ignore[attr-defined]
        processor = json.dumps(self.processor.to_dict(), sort_keys=True, default=str)
        return backend, processor, self._chat and self._chat.template, self.max_length

    def pieces(self, row: dict[str, Any]) -> Iterator[tuple[Kind, str]]:
        """The text of a row in order, with one token for each image, and of which kind each piece is."""
        at = 0
        for start, end in row["answers"]:
            yield "given", row["text"][at:start]
            yield "supervised", row["text"][start:end]
            at = end
        yield "given", row["text"][at:]

    def supervised(self, batch: dict[str, Any]) -> list[int]:
        """The number of supervised tokens of stored rows."""
        pairs = zip(batch["text"], batch["answers"], strict=True)
        answers = [[text[start:end] for start, end in spans] for text, spans in pairs]
        return [sum(map(len, self.tokenizer(texts, add_special_tokens=False)["input_ids"])) for texts in answers]

    def tensors(
        self, texts: list[str], answers: list[list[Span]], places: list[list[Span]], images: list[list[Any]]
    ) -> dict[str, Any]:
        """What the model reads for these rows, padded on the right, with `labels` [rows, tokens]."""
        options: dict[str, Any] = {"text": texts, "images": images if any(images) else None}
        if self.takes_suffix:
            if any(answers):
                options["suffix"] = [text[start:] for text, ((start, _),) in zip(texts, answers, strict=True)]
                options["text"] = [text[:start] for text, ((start, _),) in zip(texts, answers, strict=True)]
            return self._processed(**options)
        special = lacks_special_tokens(self.tokenizer, texts[0])
        batch = self._processed(**options, add_special_tokens=special, return_offsets_mapping=True)
        offsets = batch.pop("offset_mapping")
        labels = batch["input_ids"].new_full(batch["input_ids"].shape, IGNORE_INDEX)
        for i, spans in enumerate(places):
            for start, end in spans:
                answer = (offsets[i, :, 0] < end) & (offsets[i, :, 1] > start)
                labels[i, answer] = batch["input_ids"][i, answer]
        return {**batch, "labels": labels}

    def _moved(self, spans: list[Span], text: str, sizes: tuple[Size, ...]) -> Iterator[Span]:
        """Where characters of the template's text are once the processor has written the visual tokens."""
        token = self.processor.image_token
        gains = [len(slot) - len(token) for slot in (self._slots.written(sizes) if sizes else ())]
        for start, end in spans:
            gained = sum(gains[: text.count(token, 0, start)])  # no answer holds an image
            yield start + gained, end + gained

    def _processed(self, **options: Any) -> dict[str, Any]:
        return dict(self.processor(padding=True, padding_side="right", return_tensors="pt", **options))


@dataclass(frozen=True)
class FamilyCollator:
    """Rows -> what the model reads, with `labels`; padding is on the right.

    Args:
        encoder: that of the rows.
        open_images: a `RowImages`; it may replace rows.
    """

    encoder: FamilyTokens
    open_images: OpenImages

    def __call__(self, rows: Rows) -> dict[str, Any]:
        """Collate rows of the training data."""
        rows, images = self.open_images(rows)
        remaining = iter(images)
        images_of_rows = [list(islice(remaining, len(row["images"]))) for row in rows]
        texts, answers, places = ([row[name] for row in rows] for name in ("text", "answers", "places"))
        batch = self.encoder.tensors(texts, answers, places, images_of_rows)
        for row, length in zip(rows, batch["attention_mask"].sum(1).tolist(), strict=True):
            if row["answers"] and length != row["length"]:  # the labels would be at the wrong places
                raise UserError(
                    f"the model's processor wrote {length} tokens for a row that it announced {row['length']} for"
                )
        return batch
