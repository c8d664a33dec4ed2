"""lmms-eval adapter `aligned_llava`: `lmms-eval --model aligned_llava --model_args pretrained=PATH,batch_size=64`.

It works with every checkpoint that AutoModelForImageTextToText and AutoProcessor load, answers in batches and resumes
from an answer log. An error is raised, never turned into an empty (wrong) answer.
"""

import functools
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from lmms_eval.api.instance import Instance
from lmms_eval.api.model import lmms
from PIL import Image
from tqdm import tqdm

from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog
from modeling_aligned_llava.harness.deviations import stock
from modeling_aligned_llava.harness.documents import Documents, opened_ahead
from modeling_aligned_llava.harness.provenance import launched, own_log, producer_digest
from modeling_aligned_llava.inference.memory import ANSWER_TOKENS, halving
from modeling_aligned_llava.inference.prefix_plan import Segment, pack, plan
from modeling_aligned_llava.inference.stop_strings import cut
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint, hash_text
from modeling_aligned_llava.loading.upstream import require


require(__name__)

GREY = (127, 127, 127)
# Of a task's or --gen_kwargs' settings: those that are followed, and those without effect on greedy answers.
FOLLOWED = {"until", "max_new_tokens", "do_sample", "num_beams", "temperature"}
WITHOUT_EFFECT = {"top_p", "top_k", "image_aspect_ratio"}  # the last was that of LLaVA's own code


def manifest() -> Any:
    """Entry point of the group `lmms_eval.models`. The model id is unique, so tasks use their `default` prompts."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest(
        model_id="aligned_llava", simple_class_path="modeling_aligned_llava.harness.lmms_eval_model.AlignedLlava"
    )


@functools.cache
def _load(folder: str, dtype: str, device: str, trust_remote_code: bool, server: Any) -> Any:
    """Load the model once per process: lmms-eval creates a new adapter for every call."""
    from modeling_aligned_llava.inference.generator import load_generator  # torch and transformers only when needed
    from modeling_aligned_llava.inference.served import load_served
    from modeling_aligned_llava.loading.checkpoint import read_config

    family = stock(read_config(folder).get("model_type", ""))
    if server is not None:
        return load_served(folder, server, trust_remote_code, family.system_prompt, **family.processor)
    return load_generator(folder, dtype, device, trust_remote_code, family.system_prompt, **family.processor)


@dataclass(frozen=True)
class Question:
    """A question: the key of its answer in the log, its prompt, and the sizes and a function to open its images."""

    key: AnswerKey
    prompt: str
    sizes: list[tuple[int, int]]
    open: Callable[[], list[Image.Image]]


class AlignedLlava(lmms):
    """Greedy, batched answers for lmms-eval's `generate_until` tasks.

    Args:
        pretrained: checkpoint folder, or a Hub id that is in the local cache or can be downloaded.
        dtype: "auto", "float32", "bfloat16", ...
        device: torch device of the model (default: that of the process under `accelerate launch`, else the CPU).
        batch_size: rows per forward pass. Recorded with every answer: in low precision padding can flip a near tie.
        max_new_tokens: upper limit on what tasks ask for. A task that asks for nothing gets what lmms-eval's own model
            of the family gives it (`deviations.py`).
        answer_log: JSONL file that stores every batch; a killed run continues from it.
        fingerprint: sha256 of the checkpoint if it is known already (default: computed).
        shared_prefix: compute what questions about one image share only once, if the model allows it.
        blank_images: replace every image by a grey one of the same size, to check that vision is used.
        trust_remote_code: run model code from the checkpoint.
        server: the vLLM that answers instead, in `dtype` (`inference/served.py`).
        progress: called with the number of rows after each batch, instead of a progress bar.

    Attributes:
        images: document -> sha256 of its images, of the requests answered last ("" for a text-only one).
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
        server: Any = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__()
        if max_batch_size is not None:
            raise ValueError("aligned_llava takes batch_size=N; it does not search for one (max_batch_size)")
        from modeling_aligned_llava.loading.checkpoint import local_folder

        folder = local_folder(pretrained, trust_remote_code)
        if (accelerator := launched()) is not None:  # lmms-eval reads these to distribute the documents
            self.accelerator, device = accelerator, device or str(accelerator.device)
            self._rank, self._world_size = accelerator.process_index, accelerator.num_processes
        self.device = torch.device(device or "cpu")
        self._generator = _load(folder, dtype, str(self.device), trust_remote_code, server)
        self._weights = fingerprint or hash_checkpoint(folder)
        self._dtype = dtype if server else str(self._generator.model.dtype).removeprefix("torch.")
        self.batch_size = int(batch_size or 1)
        self._max_new_tokens = max_new_tokens
        self._log = AnswerLog(own_log(answer_log, self.rank))
        self._shared_prefix = shared_prefix and self._generator.tree is not None
        self._budget = self._generator.tree.budget if self._shared_prefix else self._generator.budget
        self._blank_images = blank_images
        self._producer = producer_digest(str(self.device))
        self._progress = progress
        self.images: dict[int, str] = {}

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Answer the requests, in their order; a batch holds questions of one task.

        The batches depend only on the requests, so a resumed run forms the same ones and skips those in the log.
        """
        groups: dict[tuple[str, str, str], list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            _, options, _, _, task, split = request.args
            groups[task, split, self._settings(options)].append(index)
        answers: dict[int, str] = {}
        self.images = {}
        with tqdm(total=len(requests), desc="aligned_llava", disable=self._progress is not None) as bar:
            for (_, _, settings), indices in groups.items():
                options = json.loads(settings)
                rows = self._read([requests[index].args for index in indices], settings)
                self.images |= {row.key.document: row.key.image for row in rows}
                tokens = self._tokenize(rows)
                for members, texts in self._answered(rows, tokens, options):
                    answers.update((indices[row], answer) for row, answer in zip(members, texts, strict=True))
                    (self._progress or bar.update)(len(members))
        return [answers[index] for index in range(len(requests))]

    def _read(self, arguments: list[tuple], settings: str) -> list[Question]:
        """Make the questions of one task without decoding their images."""
        _, _, _, _, task, split = arguments[0]
        documents = Documents(self.task_dict[task][split], task)
        questions = []
        for context, _, visual, document, _, _ in arguments:
            image, sizes = documents.look(visual, document)
            prompt = self._generator.render(context, len(sizes))
            key = AnswerKey(self._weights, task, document, hash_text(prompt), image, settings)
            questions.append(Question(key, prompt, sizes, functools.partial(documents.open, visual, document)))
        return questions

    def _tokenize(self, rows: list[Question]) -> list[list[int]]:
        """The tokens of each question; without those of its images if the processor does not tell them."""
        from modeling_aligned_llava.inference.decoder_input import NoSharedPrefix

        prompts = [row.prompt for row in rows]
        try:
            return self._generator.tokenize(prompts, [row.sizes for row in rows])
        except NoSharedPrefix:  # a batch that is too large for the memory is halved
            return self._generator.processor.tokenizer(prompts)["input_ids"]

    def _batches(self, rows: list[Question], tokens: list[list[int]], limit: int) -> list[list[Segment]]:
        """Group questions about the same images if the model can share a prefix, else those of similar length."""
        most = self._budget.tokens
        lengths = [len(ids) + min(limit, ANSWER_TOKENS) for ids in tokens]
        if not self._shared_prefix:
            alone = [Segment((index,), 0) for index in range(len(rows))]
            return pack(alone, lengths, self.batch_size, most, padded=True)
        ranges = [(self._generator.end_of_images(ids), len(ids) - 1) for ids in tokens]
        segments = plan(tokens, [row.key.image for row in rows], ranges, self.batch_size)
        return pack(segments, lengths, self.batch_size, most)

    def _settings(self, options: dict[str, Any]) -> str:
        """Return canonical JSON of everything that shapes an answer besides its prompt and image."""
        unread = {name for name in options.keys() - FOLLOWED - WITHOUT_EFFECT if options[name] is not None}
        sampled = options.get("do_sample") or options.get("temperature")
        if unread or sampled or options.get("num_beams", 1) not in (1, None):
            raise ValueError(f"aligned_llava decodes greedily with one beam and no penalty; asked for {options}")
        until = options.get("until") or []
        family, asked = stock(self._generator.model_type), options.get("max_new_tokens")
        settings = {
            "until": [until] if isinstance(until, str) else list(until),
            "max_new_tokens": family.answer_tokens(asked and int(asked), self._max_new_tokens),
            "dtype": self._dtype,
            "batch_size": self.batch_size,
            "shared_prefix": self._shared_prefix,
            "attention": self._generator.model.config.get_text_config()._attn_implementation,
            "blank_images": self._blank_images,
            "engine": self._generator.engine,
            "producer": self._producer,
        }
        return json.dumps(settings, sort_keys=True)

    def _answered(
        self, rows: list[Question], tokens: list[list[int]], options: dict[str, Any]
    ) -> Iterator[tuple[list[int], list[str]]]:
        """Yield the rows of each batch and their answers, from the log or by the model."""
        batches = self._batches(rows, tokens, options["max_new_tokens"])
        unknown = []
        for batch in batches:
            members = [row for segment in batch for row in segment.rows]
            known = self._log.find([rows[row].key for row in members])
            if known is None:
                unknown.append(batch)
            else:
                yield members, known

        def opening(batch: list[Segment]) -> dict[str, Callable[[], list[Image.Image]]]:
            shown = {rows[row].key.image: rows[row] for segment in batch for row in segment.rows}
            return {image: functools.partial(self._open, row) for image, row in shown.items()}

        for batch, images in opened_ahead(unknown, opening):
            members = [row for segment in batch for row in segment.rows]
            answer = functools.partial(self._answer, rows, tokens, images, options)
            answers = halving(answer, batch, self._generator.release)
            answers = [cut(answer, options["until"]) for answer in answers]
            self._log.append([rows[row].key for row in members], answers)
            yield members, answers

    def _answer(
        self,
        rows: list[Question],
        tokens: list[list[int]],
        images: dict[str, list[Image.Image]],
        options: dict[str, Any],
        batch: list[Segment],
    ) -> list[str]:
        """Answer one batch by the model, in the order of its segments; `images` by their digest."""
        limit, stops = options["max_new_tokens"], options["until"]
        members = [row for segment in batch for row in segment.rows]
        prompts = [row.prompt for row in rows]
        if self._shared_prefix:
            segment_images = [images[rows[segment.rows[0]].key.image] for segment in batch]
            return self._generator.answer_shared(prompts, tokens, batch, segment_images, limit, stops)
        return self._generator.answer(
            [prompts[row] for row in members], [images[rows[row].key.image] for row in members], limit, stops
        )

    def _open(self, row: Question) -> list[Image.Image]:
        images = row.open()
        return [Image.new("RGB", image.size, GREY) for image in images] if self._blank_images else images

    def loglikelihood(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("lmms-eval's multiple_choice scoring expects losses; run text tasks with lm-eval")

    def generate_until_multi_round(self, requests: list[Instance]) -> NoReturn:
        raise NotImplementedError("aligned_llava answers single-turn tasks")
