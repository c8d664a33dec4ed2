"""A checkpoint that vLLM serves: the same prompts and scores as here, asked over HTTP.

A server in a process of its own needs neither vLLM nor its versions of torch and transformers beside this package.
"""

import functools
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import httpx
import torch
from PIL import Image

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.decoder_input import NoSharedPrefix
from modeling_aligned_llava.inference.generator import Generator, load_processor
from modeling_aligned_llava.inference.memory import Budget
from modeling_aligned_llava.inference.prompt import lacks_special_tokens
from modeling_aligned_llava.loading.images import data_uri


NAME = "checkpoint"
WAIT = httpx.Timeout(3600, connect=10)  # seconds: an answer waits for others
UNLIMITED = Budget(sys.maxsize, sys.maxsize)
# Prompts are rendered here: the server's chat template hands them on as they are.
AS_RENDERED = "{% for part in messages[0].content if part.type == 'text' %}{{ part.text }}{% endfor %}"
SERVER_OPTIONS = (
    *("--served-model-name", NAME),
    *("--chat-template", AS_RENDERED),
    *("--chat-template-content-format", "openai"),
)
GREEDY = {"temperature": 0, "repetition_penalty": 1.0, "presence_penalty": 0, "frequency_penalty": 0}


class Server:
    """A vLLM server, started with `SERVER_OPTIONS`.

    Args:
        address: such as `http://127.0.0.1:8000`.
        options: with which it was started, as far as answers depend on them.
    """

    def __init__(self, address: str, options: str) -> None:
        self._options = options
        # Many questions at once, and no proxy.
        self._client = httpx.Client(base_url=address, timeout=WAIT, limits=httpx.Limits(), trust_env=False)

    def is_ready(self) -> bool:
        try:
            return self._client.get("/health").is_success
        except httpx.TransportError:
            return False

    @functools.cached_property
    def engine(self) -> str:
        """What decides its answers: version and options."""
        return f"vllm {self._client.get('/version').json()['version']} {self._options}"

    def answer(
        self, prompt: str, images: Sequence[Image.Image], max_new_tokens: int, stops: Sequence[str], special: bool
    ) -> tuple[list[int], list[int]]:
        """Continue a rendered prompt greedily; `special`: the tokenizer adds its special tokens.

        Returns:
            The tokens that the model read, and those of the answer.

        Raises:
            UserError: the server refuses the question.
        """
        content = [
            {"type": "image_url", "image_url": {"url": data_uri(image, "PNG", compress_level=1)}} for image in images
        ]
        reply = self._ask(
            "/v1/chat/completions",
            messages=[{"role": "user", "content": [*content, {"type": "text", "text": prompt}]}],
            max_tokens=max_new_tokens,
            stop=list(stops),
            add_special_tokens=special,
            return_token_ids=True,
        )
        return reply["prompt_token_ids"], reply["choices"][0]["token_ids"]

    def log_likelihoods(self, rows: list[list[int]], scored: list[int]) -> list[tuple[float, bool]]:
        """Summed log-probability of the last `scored` tokens of each row, and whether they are the greedy ones.

        Raises:
            UserError: the server refuses a row.
        """
        reply = self._ask("/v1/completions", prompt=rows, max_tokens=1, prompt_logprobs=0)
        scores = []
        for choice, row, last in zip(
            sorted(reply["choices"], key=lambda choice: choice["index"]), rows, scored, strict=True
        ):
            chosen = [
                alternatives[str(token)]
                for alternatives, token in list(zip(choice["prompt_logprobs"], row, strict=True))[-last:]
            ]
            scores.append((sum(token["logprob"] for token in chosen), all(token["rank"] == 1 for token in chosen)))
        return scores

    def _ask(self, route: str, **body: Any) -> Any:
        try:
            response = self._client.post(route, json={"model": NAME, **GREEDY, **body})
        except httpx.TransportError as error:
            raise UserError(f"vLLM does not answer any more ({error}); see its log") from error
        if response.is_error:
            raise UserError(f"vLLM refuses a question ({response.status_code}): {response.text[:400]}")
        return response.json()


@dataclass(kw_only=True)
class ServedGenerator(Generator):
    """A `Generator` whose `model` holds no weights (`config`, `device` and `dtype`): `server` answers."""

    server: Server
    tree = None  # vLLM shares prefixes itself
    budget = UNLIMITED

    @property
    def engine(self) -> str:
        return self.server.engine

    def answer(
        self, prompts: list[str], images: list[list[Image.Image]], max_new_tokens: int, stops: Sequence[str] = ()
    ) -> list[str]:
        """See `Generator.answer`.

        Raises:
            UserError: the server refuses a question, or reads other tokens than the processor writes.
        """
        special = lacks_special_tokens(self.processor.tokenizer, prompts[0])
        with ThreadPoolExecutor(len(prompts)) as pool:
            asked = [
                pool.submit(self.server.answer, prompt, row_images, max_new_tokens, stops, special)
                for prompt, row_images in zip(prompts, images, strict=True)
            ]
            read, answers = zip(*(reply.result() for reply in asked), strict=True)
        try:
            expected = self.tokenize(prompts, [[image.size for image in row_images] for row_images in images])
        except NoSharedPrefix:  # the processor does not say
            expected = list(read)
        if expected != list(read):
            raise UserError(f"vLLM reads {self.model_type}'s prompts in other tokens than its processor writes")
        return self._texts(list(answers))


def load_served(
    folder: str,
    server: Server,
    trust_remote_code: bool = False,
    system_prompt: str | None = None,
    **processor_settings: Any,
) -> ServedGenerator:
    """Like `load_generator`, without weights."""
    config, processor = load_processor(folder, trust_remote_code, **processor_settings)
    without_weights = SimpleNamespace(config=config, device="cpu", dtype=torch.float32)
    return ServedGenerator(without_weights, processor, system_prompt, server=server)
