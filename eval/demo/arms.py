"""The models of the demo: each is loaded once, answers word by word, and does one thing at a time.

Hooks and the attention implementation belong to a model as a whole, so every use of it takes the arm's lock.
"""

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList, TextIteratorStreamer

from eval.data.image_sample import Picture
from eval.diagnostics.measure.embeddings import embedding_norms, embedding_statistics
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import Generator, load_generator
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts
from modeling_aligned_llava.loading.checkpoint import check_source, local_folder


MOST = 3  # arms that fit beside each other


@dataclass(frozen=True)
class Answer:
    """What an arm has said so far about a picture: the text, and the ids of its tokens once it is whole."""

    picture: Picture
    text: str
    ids: tuple[int, ...] = ()


@dataclass
class Arm:
    """A model under the name it has on the page."""

    name: str
    generator: Generator
    parts: ModelParts
    embedding: dict[str, Any]  # statistics of the norms of its text embeddings
    lock: Lock = field(default_factory=Lock)

    def inputs(self, picture: Picture) -> dict[str, Any]:
        """The model's inputs for a picture and its question, one row.

        Raises:
            UserError: the picture cannot be read.
        """
        image = picture.open()
        return dict(self.generator.inputs([self.generator.render(picture.question, images=1)], [[image]]))

    def stream(self, picture: Picture, most: int) -> Iterator[Answer]:
        """The answer as it grows, of at most `most` tokens; the last one has its ids.

        A reader that goes away ends the generation. What goes wrong in it is raised here.
        """
        tokenizer = self.generator.processor.tokenizer
        streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
        abandoned = _Abandoned()

        def generate() -> Tensor:
            try:
                with self.lock, torch.inference_mode():
                    inputs = self.inputs(picture)
                    ids = self.generator.model.generate(
                        **inputs,
                        max_new_tokens=most,
                        streamer=streamer,
                        stopping_criteria=StoppingCriteriaList([abandoned]),
                    )
                    return ids[0, inputs["input_ids"].shape[1] :]
            finally:
                streamer.end()  # or the reader would wait for ever

        with ThreadPoolExecutor(1) as pool:
            generated = pool.submit(generate)
            text = ""
            try:
                for piece in streamer:
                    text += piece
                    yield Answer(picture, text)
            finally:
                abandoned.event.set()
            ids = generated.result().tolist()
        yield Answer(picture, tokenizer.decode(ids, skip_special_tokens=True), tuple(ids))

    def words(self, answer: Answer) -> list[tuple[str, int]]:
        """The words of a whole answer, each with the number of its first token."""
        decode = self.generator.processor.tokenizer.decode
        ends = [len(decode(answer.ids[: n + 1], skip_special_tokens=True)) for n in range(len(answer.ids))]
        return [
            (word[0], next(n for n, end in enumerate(ends) if end > word.start()))
            for word in re.finditer(r"\S+", answer.text)
        ]


class _Abandoned(StoppingCriteria):
    """Ends a generation that nobody reads any more."""

    def __init__(self) -> None:
        self.event = Event()

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.full((input_ids.shape[0],), self.event.is_set(), device=input_ids.device)


def load_arms(models: dict[str, str], device: str, trust_remote_code: bool = False) -> list[Arm]:
    """Load each model once; a value of `models` is a checkpoint folder or a Hub id.

    Raises:
        UserError: one cannot be loaded, or has no visual tokens.
    """
    arms = []
    for name, source in models.items():
        check_source(source, f"--models {name}")
        try:
            generator = load_generator(local_folder(source), device=device, trust_remote_code=trust_remote_code)
        except UserError as error:
            raise UserError(f"--models {name}: {error}") from error
        except (OSError, ValueError, RuntimeError) as error:
            raise UserError(f"--models {name}: cannot load {source}: {' '.join(str(error).split())}") from error
        parts = model_parts(generator.model)
        norms = embedding_statistics(embedding_norms(parts.embedding))
        arms.append(Arm(name, generator, parts, {"text embeddings": norms}))
    return arms


def finished_arms(run: Path) -> dict[str, str]:
    """The finished arms of a run by name, `baseline` first, as many as fit beside each other."""
    folders = [path.parent for path in run.glob("checkpoints/*/stage2/config.json")]
    names = sorted((folder.parent.name for folder in folders), key=lambda name: (name != "baseline", name))
    return {name: str(run / "checkpoints" / name / "stage2") for name in names[:MOST]}
