"""Greedy answers of any image-text-to-text checkpoint, in batches, with or without images.

Decoding does not depend on `generation_config.json` (the paper: "greedy decoding for all tasks"); only the
end-of-sequence tokens come from the checkpoint.
"""

import copy
import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoProcessor,
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)

from modeling_aligned_llava.alignment import load_vision_language
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.decoder_input import DecoderInput, NoSharedPrefix, decoder_inputs
from modeling_aligned_llava.inference.finite_logits import FiniteLogits
from modeling_aligned_llava.inference.image_slots import ImageSlots, Size
from modeling_aligned_llava.inference.memory import ANSWER_TOKENS, Budget, budget
from modeling_aligned_llava.inference.prefix_plan import Segment
from modeling_aligned_llava.inference.prefix_tree import PrefixTree, open_tree
from modeling_aligned_llava.inference.prompt import image_tokens, lacks_special_tokens, names_image_token, user_turn
from modeling_aligned_llava.inference.stop_strings import GrowingAnswer, Stops, StopStrings
from modeling_aligned_llava.inspection.model_parts import image_token_id
from modeling_aligned_llava.loading.checkpoint import end_tokens, load_part


LLAVA = ("llava", "aligned_llava")
# Some scorers write answers to .xlsx, which refuses these: one such character would lose the whole task.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass
class Generator:
    """A model with its processor; not an `nn.Module`, because lmms-eval deletes those from an adapter's attributes."""

    model: Any
    processor: Any
    system_prompt: str | None = None

    def __post_init__(self) -> None:
        self._slots = ImageSlots(self.processor)

    @functools.cached_property
    def tree(self) -> PrefixTree | None:
        """The reader of shared prefixes; None, with one warning, if the model cannot share them."""
        return open_tree(self.model, self._try_sharing)

    @property
    def engine(self) -> str:
        """What runs the model."""
        return "transformers"

    @property
    def budget(self) -> Budget:
        """What fits into a batch without a tree."""
        return budget(self.model)

    @property
    def model_type(self) -> str:
        return self.model.config.model_type

    @functools.cached_property
    def needs_images(self) -> bool:
        """Whether the processor refuses a question without an image (PaliGemma's does)."""
        try:
            self.inputs(["a"], [[]])
        except ValueError:
            return True
        return False

    def render(self, text: str, images: int) -> str:
        """Render one user turn with the checkpoint's chat template, with `images` images before the text.

        Image tokens in `text` itself are removed: a document must not open an image slot.

        Raises:
            UserError: the model answers no question without an image.
        """
        if not images and self.needs_images:
            raise UserError(f"{self.model_type} answers no question without an image: {text[:60]!r}")
        image_token = self.processor.image_token
        reserved = image_tokens(self.processor, self.model.config)
        while any(token in text for token in reserved):
            for token in reserved:
                text = text.replace(token, "")
        prompt = user_turn(self.processor, text, images, self.system_prompt)
        if prompt.count(image_token) != images:
            raise ValueError(f"the chat template wrote {prompt.count(image_token)} image slots for {images} images")
        return prompt

    def tokenize(self, prompts: list[str], sizes: Sequence[Sequence[Size]]) -> list[list[int]]:
        """Tokenize rendered prompts as the processor does, without opening their images.

        Args:
            sizes: of the images of each prompt; they determine its visual tokens.

        Raises:
            NoSharedPrefix: the processor does not say what it writes in place of an image.
        """
        try:
            expanded = [
                self._slots.fill(prompt, tuple(image_sizes))
                for prompt, image_sizes in zip(prompts, sizes, strict=True)
            ]
        except UserError as error:
            raise NoSharedPrefix(str(error)) from error
        special = lacks_special_tokens(self.processor.tokenizer, prompts[0])  # one template rendered all of them
        return self.processor.tokenizer(expanded, add_special_tokens=special)["input_ids"]

    def end_of_images(self, tokens: list[int]) -> int:
        """Return the number of tokens up to the last visual one; 0 without images."""
        visual = image_token_id(self.model.config)
        return len(tokens) - tokens[::-1].index(visual) if visual in tokens else 0

    def release(self) -> None:
        """Give up the memory kept from batch to batch."""
        if self.tree is not None:
            self.tree.release()

    @torch.inference_mode()
    def answer(
        self, prompts: list[str], images: list[list[Image.Image]], max_new_tokens: int, stops: Sequence[str] = ()
    ) -> list[str]:
        """Continue rendered prompts greedily; `images[i]` are the images of `prompts[i]`, perhaps none.

        Decoding ends when every row has ended, by itself or at one of `stops`; the text is not cut there.
        """
        inputs = self.inputs(prompts, images)
        length = inputs["input_ids"].shape[1]
        ends = StopStrings(Stops(self.processor.tokenizer, stops), len(prompts))
        ids = self.model.generate(
            **inputs,
            max_new_tokens=max_new_tokens,
            logits_processor=LogitsProcessorList([FiniteLogits(self.model, prompts)]),
            stopping_criteria=StoppingCriteriaList([ends]),
        )
        return self._texts(ids[:, length:])  # (rows, answer)

    def inputs(self, prompts: list[str], images: list[list[Image.Image]]) -> Any:
        """Return the model's inputs for rendered prompts, left-padded, on its device; `images` as for `answer`."""
        special = lacks_special_tokens(self.processor.tokenizer, prompts[0])
        return self.processor(
            text=list(prompts),
            images=images if any(images) else None,
            padding=True,
            return_tensors="pt",
            add_special_tokens=special,
        ).to(self.model.device, self.model.dtype)

    @torch.inference_mode()
    def answer_shared(
        self,
        prompts: list[str],
        rows: list[list[int]],
        batch: list[Segment],
        images: list[list[Image.Image]],
        max_new_tokens: int,
        stops: Sequence[str] = (),
    ) -> list[str]:
        """Continue rendered prompts greedily, in the order of the segments; needs a `tree`. A row leaves when it ends.

        Args:
            prompts: of all rows.
            rows: their tokens, as returned by `tokenize`.
            batch: segments of `rows`; one that shares nothing has a single row.
            images: the images of each segment; if it shares a prefix, they are part of it.
            stops: strings that end a row; its text is not cut there.
        """
        assert self.tree is not None
        active = [row for segment in batch for row in segment.rows]
        checked = Stops(self.processor.tokenizer, stops)
        answers = {row: GrowingAnswer(checked) for row in active}
        ends = set(self.model.generation_config.eos_token_id)

        def choose(rows: list[int], logits: torch.Tensor) -> list[int]:
            finite = FiniteLogits(self.model, [prompts[row] for row in rows])
            return finite(logits, logits).argmax(-1).tolist()

        logits = self.tree.read(
            rows,
            batch,
            dict.fromkeys(active, 1),
            reserve=len(active) * min(max_new_tokens, ANSWER_TOKENS),
            embed=lambda opened: self._embed(prompts, rows, batch, images, opened),
        )
        chosen = choose(active, torch.cat(list(logits)))
        while active:
            going = []
            for row, token in zip(active, chosen, strict=True):
                stopped = answers[row].append(token)
                if not stopped and token not in ends and len(answers[row].tokens) < max_new_tokens:
                    going.append(row)
            active = going
            if active:
                chosen = choose(active, self.tree.append(active, [answers[row].tokens[-1] for row in active]))
        return self._texts([answer.tokens for answer in answers.values()])

    def _embed(
        self,
        prompts: list[str],
        rows: list[list[int]],
        batch: Sequence[Segment],
        images: list[list[Image.Image]],
        opened: list[int],
    ) -> dict[int, DecoderInput]:
        """What the decoder reads for the first row of those of the `opened` segments that have images."""
        with_images = [index for index in opened if images[index]]
        if not with_images:
            return {}
        first = [batch[index].rows[0] for index in with_images]
        inputs = self.inputs([prompts[row] for row in first], [images[index] for index in with_images])
        for row, ids, kept in zip(first, inputs["input_ids"], inputs["attention_mask"].bool(), strict=True):
            if ids[kept].tolist() != rows[row]:
                raise NoSharedPrefix("its processor writes other tokens than it announces")
        return dict(zip(with_images, decoder_inputs(self.model, inputs), strict=True))

    @torch.inference_mode()
    def _try_sharing(self) -> None:
        """Lay out one question about a small image.

        Raises:
            NoSharedPrefix: the processor or the decoder does not allow it.
        """
        image, prompt = Image.new("RGB", (64, 48)), self.render("a", 1)
        rows = self.tokenize([prompt], [[image.size]])
        if not self.end_of_images(rows[0]):
            raise NoSharedPrefix("its configuration does not name the token of an image")
        self._embed([prompt], rows, [Segment((0,), 0)], [[image]], [0])

    def _texts(self, ids: Any) -> list[str]:
        answers = self.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [CONTROL_CHARACTERS.sub("", answer) for answer in answers]


def _check_tokenizer(folder: str, model: Any, processor: Any) -> None:
    """Check that a LLaVA's tokenizer and its model mean the same by an id.

    Raises:
        UserError: the tokenizer has ids that the model does not, or another one for an image.
    """
    ids, rows = processor.tokenizer.get_vocab(), model.get_input_embeddings().num_embeddings
    if max(ids.values(), default=0) >= rows:
        raise UserError(f"{folder}: its tokenizer has ids up to {max(ids.values())}, its model only {rows} embeddings")
    if ids.get(processor.image_token) != image_token_id(model.config):
        raise UserError(
            f"{folder}: {processor.image_token} is token {ids.get(processor.image_token)} to its tokenizer, but "
            f"{image_token_id(model.config)} to its model"
        )


def load_processor(folder: str, trust_remote_code: bool = False, **settings: Any) -> tuple[Any, Any]:
    """Load a checkpoint's configuration, and its processor with some settings of images replaced; it pads on the left.

    Raises:
        UserError: one of them cannot be loaded, the processor names no image token, or a setting has no effect.
    """
    flag: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    config, processor = load_part(AutoConfig, folder, **flag), load_part(AutoProcessor, folder, **flag)
    if not names_image_token(processor):
        raise UserError(f"{folder}: {config.model_type} cannot be served: its processor names no image token")
    if settings:  # copied: image processors write into the dictionaries that they are given
        processor.image_processor = load_part(AutoImageProcessor, folder, **flag, **copy.deepcopy(settings))
    for name, asked in settings.items():
        loaded = getattr(processor.image_processor, name, None)
        if (dict(loaded) if isinstance(asked, dict) and loaded else loaded) != asked:
            raise UserError(f"{folder}: its processor was to have {name} {asked}, and has {loaded}")
    tokenizer = processor.tokenizer
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return config, processor


def load_generator(
    folder: str,
    dtype: str = "auto",
    device: str = "cpu",
    trust_remote_code: bool = False,
    system_prompt: str | None = None,
    **processor_settings: Any,
) -> Generator:
    """Load a checkpoint for greedy decoding with its own processor.

    Args:
        system_prompt: put before every question; None: what the chat template writes by itself.
        **processor_settings: replace those of the checkpoint's processor.

    Raises:
        UserError: it cannot be loaded, lacks tensors or is of a kind that cannot answer.
    """
    config, processor = load_processor(folder, trust_remote_code, **processor_settings)
    model: Any = load_vision_language(folder, config, dtype=dtype, trust_remote_code=trust_remote_code)
    tokenizer = processor.tokenizer
    if config.model_type in LLAVA:
        _check_tokenizer(folder, model, processor)
    try:
        ends = end_tokens(model.generation_config, model.config.get_text_config(), tokenizer)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from error
    # Replaced, not passed to generate(), which would fill unset fields from the checkpoint's own.
    model.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        eos_token_id=ends,
        pad_token_id=tokenizer.pad_token_id,
    )
    return Generator(model.to(device), processor, system_prompt)
