"""lmms-eval adapter `aligned_llava`: `lmms-eval --model aligned_llava --model_args pretrained=PATH,batch_size=64`.

It works with every checkpoint that AutoModelForImageTextToText and AutoProcessor load, answers in batches and resumes
from an answer log. An error is raised, never turned into an empty (wrong) answer.
"""

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from PIL import Image
from tqdm import tqdm

from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog
from modeling_aligned_llava.harness.distributed import launched, own_log
from modeling_aligned_llava.harness.provenance import producer_digest
from modeling_aligned_llava.inference.prefix_plan import Segment, pack, plan
from modeling_aligned_llava.inference.prefix_tree import CACHE_TOKENS
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint, hash_text


GREY = (127, 127, 127)
DEFAULT_MAX_NEW_TOKENS = 128  # for tasks without a limit (mmstar)


def manifest() -> Any:
    """Entry point of the group `lmms_eval.models`. The model id is unique, so tasks use their `default` prompts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(
        model_id="aligned_llava", simple_class_path="modeling_aligned_llava.harness.lmms_eval_model.AlignedLlava"
    )


@functools.cache
def _load(folder: str, dtype: str, device: str, trust_remote_code: bool) -> Any:
    """Load the model once per process: lmms-eval creates a new adapter for every call."""
    from modeling_aligned_llava.inference.generator import load_generator  # torch and transformers only when needed

    return load_generator(folder, dtype, device, trust_remote_code)


def _hash_images(images: list[Image.Image]) -> str:
    """Return the sha256 of pixels and sizes; "" without an image."""
    digest = hashlib.sha256()
    for image in images:
        digest.update(repr(image.size).encode() + image.tobytes())
    return digest.hexdigest() if images else ""


@dataclass(frozen=True)
class Question:
    """A question: the key of its answer in the log, its prompt, and a function that opens its images again."""

    key: AnswerKey
    prompt: str
    images: int
    open: Callable[[], list[Image.Image]]


class AlignedLlava(lmms):
    """Greedy, batched answers for lmms-eval's `generate_until` tasks.

    Args:
        pretrained: checkpoint folder, or a Hub id that is in the local cache or can be downloaded.
        dtype: "auto", "float32", "bfloat16", ...
        device: torch device of the model (default: that of the process under `accelerate launch`, else the CPU).
        batch_size: rows per forward pass. Recorded with every answer: in low precision padding can flip a near tie.
        max_new_tokens: upper limit on what tasks ask for.
        answer_log: JSONL file that stores every batch; a killed run continues from it.
        fingerprint: sha256 of the checkpoint if it is known already (default: computed).
        shared_prefix: compute what questions about one image share only once, if the model allows it.
        blank_images: replace every image by a grey one of the same size, to check that vision is used.
        trust_remote_code: run model code from the checkpoint.
        progress: called with the number of rows after each batch, instead of a progress bar.
    """

    is_simple = True

    def __init__(
        self,
        pretrained: str,
        dtype: str = "auto",
        device: str | None = None,
        batch_size: int | str | None = 1,
        max_batch_size: int | None = None,
        max_new_tokens: int | None = None,
        answer_log: str | None = None,
        fingerprint: str | None = None,
        shared_prefix: bool = True,
        blank_images: bool = False,
        trust_remote_code: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        if max_batch_size is not None:
            raise ValueError("aligned_llava takes batch_size=N; it does not search for one (max_batch_size)")
        from modeling_aligned_llava.loading.checkpoint import local_folder

        folder = local_folder(pretrained)
        if (accelerator := launched()) is not None:  # lmms-eval reads these to distribute the documents
            self.accelerator, device = accelerator, device or str(accelerator.device)
            self._rank, self._world_size = accelerator.process_index, accelerator.num_processes
        self.device = torch.device(device or "cpu")
        self._generator = _load(folder, dtype, str(self.device), trust_remote_code)
        self._weights = fingerprint or hash_checkpoint(folder)
        self._dtype = str(self._generator.model.dtype).removeprefix("torch.")
        self.batch_size = int(batch_size or 1)
        self._max_new_tokens = max_new_tokens
        self._log = AnswerLog(own_log(answer_log, self.rank))
        self._shared_prefix = shared_prefix and self._generator.tree is not None
        self._blank_images = blank_images
        self._producer = producer_digest(str(self.device))
        self._progress = progress

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Answer the requests, in their order; a batch holds questions of one task.

        The batches depend only on the requests, so a resumed run forms the same ones and skips those in the log.
        """
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            _, options, _, _, task, split = request.args
            groups[task, split, self._settings(options)].append(index)
        answers: dict[int, str] = {}
        with tqdm(total=len(requests), desc="aligned_llava", disable=self._progress is not None) as bar:
            for (_, _, settings), indices in groups.items():
                options = json.loads(settings)
                rows = [self._read(requests[index].args, settings) for index in indices]
                tokens = self._tokenize(rows) if self._shared_prefix else []
                for batch in self._batches(rows, tokens, options["max_new_tokens"]):
                    members = [row for segment in batch for row in segment.rows]
                    found = self._answer_batch(rows, tokens, batch, options)
                    answers.update((indices[row], answer) for row, answer in zip(members, found, strict=True))
                    (self._progress or bar.update)(len(members))
        return [answers[index] for index in range(len(requests))]

    def _read(self, arguments: tuple, settings: str) -> Question:
        """Make one question; its images are opened for their digest only, because a task's do not fit into memory."""
        context, _, visual, document, task, split = arguments
        open_images = functools.partial(self._images, visual, document, task, split)
        images = open_images()
        prompt = self._generator.render(context, len(images))
        key = AnswerKey(self._weights, task, document, hash_text(prompt), _hash_images(images), settings)
        return Question(key, prompt, len(images), open_images)

    def _images(self, visual: Callable, document: int, task: str, split: str) -> list[Image.Image]:
        images = list(visual(self.task_dict[task][split][document]) or [])
        if not all(isinstance(image, Image.Image) for image in images):
            raise ValueError(f"{task} document {document}: aligned_llava reads images only")
        return [image.convert("RGB") for image in images]

    def _tokenize(self, rows: list[Question]) -> list[list[int]]:
        return self._generator.tokenize([row.prompt for row in rows], [row.images for row in rows])

    def _batches(self, rows: list[Question], tokens: list[list[int]], limit: int) -> list[list[Segment]]:
        """Group questions about the same images if the model can share a prefix, else those of similar length."""
        if not self._shared_prefix:
            lengths = [len(row.prompt) for row in rows]
            return pack([Segment((index,), 0) for index in range(len(rows))], lengths, self.batch_size)
        image_id = self._generator.processor.image_token_id
        images_end = [len(ids) - ids[::-1].index(image_id) if image_id in ids else 0 for ids in tokens]
        ranges = [(end, len(ids) - 1) for end, ids in zip(images_end, tokens, strict=True)]
        segments = plan(tokens, [row.key.image for row in rows], ranges, self.batch_size)
        return pack(segments, [len(ids) + limit for ids in tokens], self.batch_size, CACHE_TOKENS)

    def _settings(self, options: dict[str, Any]) -> str:
        """Return canonical JSON of everything that shapes an answer besides its prompt and image."""
        if options.get("do_sample") or options.get("num_beams", 1) not in (1, None):
            raise ValueError(f"aligned_llava decodes greedily with one beam; the task asks for {options}")
        until = options.get("until") or []
        limit = int(options.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS)
        settings = {
            "until": [until] if isinstance(until, str) else list(until),
            "max_new_tokens": min(limit, self._max_new_tokens or limit),
            "dtype": self._dtype,
            "batch_size": self.batch_size,
            "shared_prefix": self._shared_prefix,
            "blank_images": self._blank_images,
            "producer": self._producer,
        }
        return json.dumps(settings, sort_keys=True)

    def _answer_batch(
        self, rows: list[Question], tokens: list[list[int]], batch: list[Segment], options: dict[str, Any]
    ) -> list[str]:
        """Answer one batch, in the order of its segments, from the log or by the model."""
        members = [rows[index] for segment in batch for index in segment.rows]
        keys = [row.key for row in members]
        answers = self._log.find(keys)
        if answers is None:
            limit = options["max_new_tokens"]
            if self._shared_prefix:
                images = [self._open(rows[segment.rows[0]]) for segment in batch]
                answers = self._generator.answer_shared(tokens, batch, images, limit)
            else:
                images = [self._open(row) for row in members]
                answers = self._generator.answer([row.prompt for row in members], images, limit)
            for stop in filter(None, options["until"]):
                answers = [answer.split(stop, 1)[0] for answer in answers]
            self._log.append(keys, answers)
        return answers

    def _open(self, row: Question) -> list[Image.Image]:
        images = row.open()
        return [Image.new("RGB", image.size, GREY) for image in images] if self._blank_images else images

    def image_digests(self, task: str) -> dict[int, str]:
        """Return the sha256 of the image of each answered document of `task` ("" for a text-only one)."""
        return self._log.images(task)

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("lmms-eval's multiple_choice scoring expects losses; run text tasks with lm-eval")

    def generate_until_multi_round(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("aligned_llava answers single-turn tasks")
