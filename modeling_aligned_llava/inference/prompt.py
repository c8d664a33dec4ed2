"""One user turn as text and how to tokenize it, the same for evaluation and diagnostics."""

import logging
from functools import cache
from typing import Any

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import IMAGE_TOKEN, image_token_id
from modeling_aligned_llava.loading.chat_templates import rendered, template_of


WITHOUT_TEMPLATE = ("PaliGemma", "Blip2", "InstructBlip", "Kosmos2", "Fuyu", "Git")  # processors that never have one
_ENDED = "the tokenizer ends every text with {}: take that out of tokenizer.json"


def user_turn(processor: Any, text: str, images: int, system: str | None = None) -> str:
    """Render one user turn, with `images` images before the text, in the chat template of processor or tokenizer.

    Without a chat template the image tokens and the text follow each other.

    Args:
        system: a system prompt before it; None: what the template writes by itself.

    Raises:
        UserError: the template refuses it or drops some of it, or there is none to write one.
    """
    template = template_of(processor)
    if template is None:
        if system is not None:
            raise UserError("there is no chat template that could write the system prompt")
        _say_bare(type(processor).__name__)
        return f"{_image_slot(processor) * images}{text}"
    content = [{"type": "image"}] * images + [{"type": "text", "text": text}]
    turns = [{"role": "user", "content": content}]
    if system is not None:
        turns.insert(0, {"role": "system", "content": [{"type": "text", "text": system}]})
    prompt, _ = rendered(getattr(processor, "tokenizer", processor), template, turns, add_generation_prompt=True)
    return prompt


@cache
def _say_bare(kind: str) -> None:
    if not kind.startswith(WITHOUT_TEMPLATE):
        logging.getLogger(__name__).warning("%s has no chat template: questions are asked without one", kind)


def names_image_token(processor: Any) -> bool:
    """Whether a processor prepares images and names the token that stands for one, without which nothing is served."""
    return hasattr(processor, "image_processor") and isinstance(getattr(processor, "image_token", None), str)


def _image_slot(processor: Any) -> str:
    """What a prompt without a template holds in place of an image."""
    if getattr(processor, "num_query_tokens", None):  # BLIP-2 and InstructBLIP write the visual tokens themselves
        return ""
    return str(getattr(processor, "image_token", ""))


def image_tokens(processor: Any, config: Any) -> list[str]:
    """The strings that open an image slot: `<image>`, the processor's placeholder and the model's visual token."""
    strings = {IMAGE_TOKEN, processor.image_token}
    if (visual := image_token_id(config)) is not None:
        strings.add(processor.tokenizer.convert_ids_to_tokens(visual))
    return sorted(strings)


def lacks_special_tokens(tokenizer: Any, prompt: str) -> bool:
    """Whether the tokenizer has to add its special tokens to a rendered prompt (pass it as `add_special_tokens`).

    Llama 3's chat template writes the beginning-of-sequence token and its tokenizer would add a second one; Vicuna's
    (LLaVA-1.5) leaves it to the tokenizer. Cohere's (Aya Vision) would add an end, too.

    Raises:
        UserError: it has to, and would end the prompt before its answer.
    """
    before, bare, after = _tokens(tokenizer, prompt[:64])  # a row can have thousands
    lacks = bare[: len(before)] != before
    if lacks and after:
        raise UserError(_ENDED.format(tokenizer.decode(after)))
    return lacks


def check_open_end(tokenizer: Any, folder: str) -> None:
    """Check that a tokenizer leaves the end of a text open, for harnesses that let it add all its special tokens.

    Raises:
        UserError: it adds a token there, as with `add_eos_token`: every prompt would be over before its answer.
    """
    if after := _tokens(tokenizer, "a")[2]:
        raise UserError(f"{folder}: {_ENDED.format(tokenizer.decode(after))}")


def _tokens(tokenizer: Any, text: str) -> tuple[list[int], list[int], list[int]]:
    """The special tokens that a tokenizer adds before a text, those of the text itself, and those added after it."""
    bare, whole = tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer(text)["input_ids"]
    places = (place for place in range(len(whole) + 1) if whole[place : place + len(bare)] == bare)
    before = max(places, default=len(whole) - len(bare))
    return whole[:before], bare, whole[before + len(bare) :]
