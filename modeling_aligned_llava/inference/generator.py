"""Greedy answers of any image-text-to-text checkpoint, in batches, with or without images.

Decoding does not depend on `generation_config.json` (the paper: "greedy decoding for all tasks"); only the
end-of-sequence tokens come from the checkpoint.
"""

import functools
import re
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoConfig, AutoProcessor, GenerationConfig

from modeling_aligned_llava.connectors import load_vision_language
from modeling_aligned_llava.inference.prefix_plan import Segment
from modeling_aligned_llava.inference.prefix_tree import PrefixTree, can_read_trees
from modeling_aligned_llava.inference.prompt import lacks_special_tokens, user_turn
from modeling_aligned_llava.loading.checkpoint import end_tokens, load_part


FIXED_RESOLUTION = (
    "llava",
    "aligned_llava",
)  # every image has the same number of tokens, so a prefix can be laid out in advance
# Some scorers write answers to .xlsx, which refuses these: one such character would lose the whole task.
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")


@dataclass
class Generator:
    """A model with its processor; not an `nn.Module`, because lmms-eval deletes those from an adapter's attributes."""

    model: Any
    processor: Any

    @functools.cached_property
    def tree(self) -> PrefixTree | None:
        """The reader of shared prefixes; None if the model does not support it."""
        fixed = self.model.config.model_type in FIXED_RESOLUTION
        return PrefixTree(self.model) if fixed and can_read_trees(self.model) else None

    def render(self, text: str, images: int) -> str:
        """Render one user turn with the checkpoint's chat template, with `images` images before the text.

        Image tokens in `text` itself are removed: a document must not open an image slot.
        """
        image_token = self.processor.image_token
        while "<image>" in text or image_token in text:
            text = text.replace("<image>", "").replace(image_token, "")
        prompt = user_turn(self.processor, text, images)
        if prompt.count(image_token) != images:
            raise ValueError(f"the chat template wrote {prompt.count(image_token)} image slots for {images} images")
        return prompt

    def tokenize(self, prompts: list[str], images: list[int]) -> list[list[int]]:
        """Tokenize rendered prompts, with as many image tokens for each of their images as the processor writes.

        Only for towers of fixed resolution (LLaVA), where that number is the same for every image.
        """
        image_id = self.processor.image_token_id
        tokenizer = self.processor.tokenizer
        special = lacks_special_tokens(tokenizer, prompts[0])  # one chat template rendered all of them
        rows = tokenizer(prompts, add_special_tokens=special)["input_ids"]
        if not any(images):
            return rows
        slot = self.processor(images=[Image.new("RGB", (8, 8))], text=[self.processor.image_token])["input_ids"][0]
        patches = sum(token == image_id for token in slot)
        return [[t for token in row for t in ([token] * patches if token == image_id else [token])] for row in rows]

    @torch.inference_mode()
    def answer(self, prompts: list[str], images: list[list[Image.Image]], max_new_tokens: int) -> list[str]:
        """Continue rendered prompts greedily; `images[i]` are the images of `prompts[i]`, perhaps none."""
        inputs = self.inputs(prompts, images)
        ids = self.model.generate(**inputs, max_new_tokens=max_new_tokens)  # (rows, prompt + answer)
        return self._texts(ids[:, inputs["input_ids"].shape[1] :])

    def inputs(self, prompts: list[str], images: list[list[Image.Image]]) -> Any:
        """Return the model's inputs for rendered prompts, left-padded, on its device; `images` as for `answer`."""
        flat = [image for row in images for image in row]
        special = lacks_special_tokens(self.processor.tokenizer, prompts[0])
        return self.processor(
            text=prompts, images=flat or None, padding=True, return_tensors="pt", add_special_tokens=special
        ).to(self.model.device, self.model.dtype)

    @torch.inference_mode()
    def answer_shared(
        self, rows: list[list[int]], batch: list[Segment], images: list[list[Image.Image]], max_new_tokens: int
    ) -> list[str]:
        """Continue tokenized rows greedily, in the order of the segments; needs a `tree`.

        Args:
            rows: as returned by `tokenize`.
            batch: segments of `rows`; one that shares nothing has a single row.
            images: the images of each segment; if it shares a prefix, they are part of it.
        """
        assert self.tree is not None
        pixels = [self._pixels(own) if own else None for own in images]
        active = [row for segment in batch for row in segment.rows]
        logits = self.tree.read(rows, batch, dict.fromkeys(active, 1), max_new_tokens, pixels)
        ends = set(self.model.generation_config.eos_token_id)
        answers: dict[int, list[int]] = {row: [] for row in active}
        chosen = torch.cat(logits).argmax(-1).tolist()
        while active:
            for row, token in zip(active, chosen, strict=True):
                answers[row].append(token)
            active = [row for row in active if answers[row][-1] not in ends and len(answers[row]) < max_new_tokens]
            if active:
                chosen = self.tree.append(active, [answers[row][-1] for row in active]).argmax(-1).tolist()
        return self._texts(list(answers.values()))

    def _pixels(self, images: list[Image.Image]) -> Tensor:
        processed = self.processor.image_processor(images, return_tensors="pt")
        return processed["pixel_values"].to(self.model.device, self.model.dtype)

    def _texts(self, ids: Any) -> list[str]:
        answers = self.processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return [CONTROL_CHARACTERS.sub("", answer) for answer in answers]


def _configuration(folder: str, trust_remote_code: bool) -> Any:
    """Load the configuration; in a LLaVA the vision layers after the one that its projector reads are dropped."""
    config = load_part(AutoConfig, folder, trust_remote_code=trust_remote_code)
    if config.model_type in FIXED_RESOLUTION and isinstance(config.vision_feature_layer, int):
        unused = -1 - config.vision_feature_layer if config.vision_feature_layer < 0 else 0
        config.vision_config.num_hidden_layers -= unused
        config.vision_feature_layer += unused
    return config


def load_generator(
    folder: str, dtype: str = "auto", device: str = "cpu", trust_remote_code: bool = False
) -> Generator:
    """Load a checkpoint for greedy decoding with its own processor.

    Raises:
        UserError: it cannot be loaded or lacks tensors.
    """
    config = _configuration(folder, trust_remote_code)
    model: Any = load_vision_language(folder, config, dtype=dtype, trust_remote_code=trust_remote_code)
    processor = load_part(AutoProcessor, folder, trust_remote_code=trust_remote_code)
    tokenizer = processor.tokenizer
    tokenizer.padding_side = "left"
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    # Replaced, not passed to generate(), which would fill unset fields from the checkpoint's own.
    model.generation_config = GenerationConfig(
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        eos_token_id=end_tokens(model.generation_config, model.config.get_text_config(), tokenizer),
        pad_token_id=tokenizer.pad_token_id,
    )
    return Generator(model.to(device), processor)
