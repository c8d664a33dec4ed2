"""The models of the demo. Each is loaded once, streams its answers, and does one thing at a time.

Hooks and the attention implementation belong to the model as a whole, so every use of a model takes its lock.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Lock
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import Generator, load_generator
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts
from modeling_aligned_llava.loading.checkpoint import check_source, local_folder
from modeling_aligned_llava.norm_alignment import embedding_norms


MAX_MODELS = 3  # that fit side by side


@dataclass(frozen=True)
class Answer:
    """A model's answer so far: the text, and once it is complete the ids of its tokens."""

    asked: ImageQuestion
    text: str
    ids: tuple[int, ...] = ()


@dataclass
class DemoModel:
    """A loaded model under its name on the page."""

    name: str
    generator: Generator
    parts: ModelParts
    embedding: dict[str, Tensor]  # the norms of its text embeddings
    lock: Lock = field(default_factory=Lock)

    def inputs(self, asked: ImageQuestion) -> dict[str, Any]:
        """The model's inputs for an image and its question, one row.

        Raises:
            UserError: the image cannot be read.
        """
        image = asked.open()
        return dict(self.generator.inputs([self.generator.render(asked.question, images=1)], [[image]]))

    def stream(self, asked: ImageQuestion, max_new_tokens: int) -> Iterator[Answer]:
        """The answer as it grows; the last one has its token ids.

        Closing the iterator ends the generation. Errors of the generation are raised here.
        """
        tokenizer = self.generator.processor.tokenizer
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        abandoned = _Abandoned()

        def generate() -> Tensor:
            try:
                with self.lock, torch.inference_mode():
                    inputs = self.inputs(asked)
                    ids = self.generator.model.generate(
                        **inputs,
                        max_new_tokens=max_new_tokens,
                        streamer=streamer,
                        stopping_criteria=StoppingCriteriaList([abandoned]),
                    )
                    return ids[0, inputs["input_ids"].shape[1] :]
            finally:
                streamer.end()  # otherwise the reader would wait forever

        with ThreadPoolExecutor(1) as pool:
            generated = pool.submit(generate)
            text = ""
            try:
                for piece in streamer:
                    text += piece
                    yield Answer(asked, text)
            finally:
                abandoned.event.set()
            ids = generated.result().tolist()
        yield Answer(asked, tokenizer.decode(ids, skip_special_tokens=True), tuple(ids))

    def words(self, answer: Answer) -> list[tuple[str, int]]:
        """The words of a complete answer, each with the index of its first token."""
        decode = self.generator.processor.tokenizer.decode
        ends = [len(decode(answer.ids[: n + 1], skip_special_tokens=True)) for n in range(len(answer.ids))]
        return [
            (word[0], next(n for n, end in enumerate(ends) if end > word.start()))
            for word in re.finditer(r"\S+", answer.text)
        ]


class _Abandoned(StoppingCriteria):
    """Ends a generation whose reader has gone."""

    def __init__(self) -> None:
        self.event = Event()

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)


def load_models(models: dict[str, str], device: str, trust_remote_code: bool = False) -> list[DemoModel]:
    """Load each model once.

    Args:
        models: name -> checkpoint folder or Hub id.

    Raises:
        UserError: a model cannot be loaded, or has no visual tokens.
    """
    loaded = []
    for name, source in models.items():
        check_source(source, f"--models {name}")
        try:
            generator = load_generator(
                local_folder(source, trust_remote_code), device=device, trust_remote_code=trust_remote_code
            )
        except UserError as error:
            raise UserError(f"--models {name}: {error}") from error
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"--models {name}: cannot load {source}: {' '.join(str(error).split())}") from error
        parts = model_parts(generator.model)
        loaded.append(DemoModel(name, generator, parts, {"text embeddings": embedding_norms(parts.embedding)}))
    return loaded
