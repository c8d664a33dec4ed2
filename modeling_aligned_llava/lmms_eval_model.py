"""lmms-eval adapter `aligned_llava`: `lmms-eval --model aligned_llava --model_args pretrained=PATH,batch_size=64`.

Works for every checkpoint that AutoModelForImageTextToText and AutoProcessor load. Batched, resumable through an
answer log; an error is raised, never turned into an empty (wrong) answer.
"""

import functools
import hashlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from PIL import Image
from tqdm import tqdm

from modeling_aligned_llava.answer_log import AnswerKey, AnswerLog, hash_checkpoint


GREY = (127, 127, 127)
DEFAULT_MAX_NEW_TOKENS = 128  # for tasks that name no limit (mmstar)


def manifest() -> Any:
    """Entry point of the group `lmms_eval.models`. The model id is unique, so tasks use their `default` prompts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(
        model_id="aligned_llava", simple_class_path="modeling_aligned_llava.lmms_eval_model.AlignedLlava"
    )


@functools.cache
def _load(folder: str, dtype: str, device: str, trust_remote_code: bool) -> Any:
    """The network, loaded once a process: lmms-eval wants a new adapter for every call."""
    from modeling_aligned_llava.batched_generation import load_generator  # torch and transformers only when needed

    return load_generator(folder, dtype, device, trust_remote_code)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _hash_images(images: list[Image.Image]) -> str:
    """Digest of pixels and sizes; "" without an image."""
    return _sha256(b"".join(repr(image.size).encode() + image.tobytes() for image in images)) if images else ""


class AlignedLlava(lmms):
    """Greedy, batched answers for lmms-eval's `generate_until` tasks.

    Args:
        pretrained: checkpoint folder, or a Hub id that is in the local cache or can be downloaded.
        dtype: "auto", "float32", "bfloat16", ...
        device: torch device of the network.
        batch_size: rows per forward pass. Recorded with every answer: in low precision padding can flip a near tie.
        max_new_tokens: upper limit on what tasks ask for.
        answer_log: JSONL file that keeps every batch; a killed run continues from it.
        fingerprint: sha256 of the checkpoint if it is known already (default: computed).
        blank_images: answer with every image replaced by a grey one of the same size (is vision used at all?).
        trust_remote_code: run model code that lies in the checkpoint.
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
        blank_images: bool = False,
        trust_remote_code: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        if max_batch_size is not None:
            raise ValueError("aligned_llava takes batch_size=N; it does not search for one (max_batch_size)")
        folder = pretrained
        if not Path(folder).is_dir():
            from huggingface_hub import snapshot_download

            folder = snapshot_download(pretrained)
        self._generator = _load(folder, dtype, device or "cpu", trust_remote_code)
        self._weights = fingerprint or hash_checkpoint(folder)
        self._dtype = str(self._generator.model.dtype).removeprefix("torch.")
        self.batch_size = int(batch_size or 1)
        self._max_new_tokens = max_new_tokens
        self._log = AnswerLog(answer_log)
        self._blank_images = blank_images
        self._progress = progress

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Answers in the order of `requests`; a batch holds one task's rows of similar length.

        The batches depend on the requests alone, so a resumed run meets the same ones and skips those in the log.
        """
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            _, options, _, _, task, split = request.args
            groups[task, split, self._settings(options)].append(index)
        answers: dict[int, str] = {}
        with tqdm(total=len(requests), desc="aligned_llava", disable=self._progress is not None) as bar:
            for (task, split, settings), indices in groups.items():
                indices.sort(key=lambda index: (-len(requests[index].args[0]), index))
                for start in range(0, len(indices), self.batch_size):
                    batch = indices[start : start + self.batch_size]
                    rows = [requests[index].args for index in batch]
                    answers.update(zip(batch, self._answer_batch(rows, task, split, settings), strict=True))
                    (self._progress or bar.update)(len(batch))
        return [answers[index] for index in range(len(requests))]

    def _settings(self, options: dict[str, Any]) -> str:
        """Canonical JSON of all that shapes an answer besides its prompt and image."""
        if options.get("do_sample") or options.get("num_beams", 1) not in (1, None):
            raise ValueError(f"aligned_llava decodes greedily with one beam; the task asks for {options}")
        until = options.get("until") or []
        limit = int(options.get("max_new_tokens") or DEFAULT_MAX_NEW_TOKENS)
        settings = {
            "until": [until] if isinstance(until, str) else list(until),
            "max_new_tokens": min(limit, self._max_new_tokens or limit),
            "dtype": self._dtype,
            "batch_size": self.batch_size,
            "blank_images": self._blank_images,
        }
        return json.dumps(settings, sort_keys=True)

    def _answer_batch(self, rows: list[tuple], task: str, split: str, settings: str) -> list[str]:
        """Answers of one batch, from the log or the network; `rows` are arguments of lmms-eval's simple models."""
        documents = [document for _, _, _, document, _, _ in rows]
        images = [list(visual(self.task_dict[task][split][document]) or []) for _, _, visual, document, _, _ in rows]
        for document, pictures in zip(documents, images, strict=True):
            if not all(isinstance(picture, Image.Image) for picture in pictures):
                raise ValueError(f"{task} document {document}: aligned_llava reads images only")
        images = [[picture.convert("RGB") for picture in pictures] for pictures in images]
        prompts = [
            self._generator.render(row[0], len(row_images)) for row, row_images in zip(rows, images, strict=True)
        ]
        keys = [
            AnswerKey(self._weights, task, document, _sha256(prompt.encode()), _hash_images(row_images), settings)
            for document, prompt, row_images in zip(documents, prompts, images, strict=True)
        ]
        known = self._log.find(keys)
        if known is not None:
            return known
        if self._blank_images:
            images = [[Image.new("RGB", picture.size, GREY) for picture in pictures] for pictures in images]
        options = json.loads(settings)
        answers = self._generator.answer(prompts, images, options["max_new_tokens"])
        for stop in filter(None, options["until"]):
            answers = [answer.split(stop, 1)[0] for answer in answers]
        self._log.append(keys, answers)
        return answers

    def image_digests(self, task: str) -> dict[int, str]:
        """sha256 of the image of each document of `task` that was answered ("" for text-only documents)."""
        return self._log.images(task)

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("lmms-eval's multiple_choice scoring expects losses; run text tasks with lm-eval")

    def generate_until_multi_round(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("aligned_llava answers single-turn tasks")
