"""How lmms-eval itself runs a family, which the adapter follows, and where it does not."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from modeling_aligned_llava.loading.chat_templates import PROMPT_DATE


ASSISTANT = "You are a helpful assistant."


@dataclass(frozen=True)
class Stock:
    """The settings of lmms-eval's own model for a family (version 0.7.3, its chat class where there is one).

    Args:
        model: its name in lmms-eval.
        max_new_tokens: for tasks without a limit of their own (MM-Star).
        system_prompt: put before every question; None: what the chat template writes by itself.
        processor: what it changes in the checkpoint's processor.
    """

    model: str
    max_new_tokens: int
    system_prompt: str | None = None
    processor: dict[str, Any] = field(default_factory=dict)

    def answer_tokens(self, asked: int | None, most: int | None) -> int:
        """How long an answer may be: as the task asks (None: this family's own length), but at most `most`."""
        limit = asked or self.max_new_tokens
        return min(limit, most or limit)


LLAVA = Stock("llava_hf", 1024)


def _pixels(least: int, most: int) -> dict[str, Any]:
    """The limits of Qwen's image processors; those that a checkpoint names in their older form do not apply."""
    return {"size": {"shortest_edge": least, "longest_edge": most}, "min_pixels": None, "max_pixels": None}


LARGE_IMAGES = _pixels(256 * 28 * 28, 1_605_632)
OTHER = Stock("huggingface", 4096)
STOCK: dict[str, Stock] = {
    "llava": LLAVA,
    "aligned_llava": LLAVA,
    "llava_next": LLAVA,
    "llava_onevision": LLAVA,
    "qwen2_vl": Stock("qwen2_vl", 128, ASSISTANT, _pixels(3136, 602_112)),
    "qwen2_5_vl": Stock("qwen2_5_vl", 128, processor=LARGE_IMAGES),
    "qwen3_vl": Stock("qwen3_vl", 128, ASSISTANT, LARGE_IMAGES),
    "internvl": Stock("internvl_hf", 1024, processor={"min_patches": 1, "max_patches": 12}),
    "gemma3": Stock("gemma3", 128, ASSISTANT),
    "mistral3": Stock("mistral3_vl", 512),
    "glm4v": Stock("glm4v", 8192),
}


def stock(model_type: str) -> Stock:
    """Return lmms-eval's settings for a family, with experts or without; those of its generic model for others."""
    return STOCK.get(model_type.removesuffix("_moe"), OTHER)


def deviations(model_type: str, tasks: Collection[str]) -> list[str]:
    """Return, in short sentences, where the answers of a family are not made as lmms-eval makes them.

    Args:
        model_type: of the checkpoint's configuration.
        tasks: names of lmms-eval's tasks.
    """
    lmms = stock(model_type)
    sentences = [
        f"Special tokens: one beginning-of-sequence token, by transformers' rule; {lmms.model} lets the tokenizer add "
        "one even where the chat template has written it.",
        f"Answers: greedy, without a penalty for repetition, up to the task's stop strings, whatever {lmms.model} "
        "does; control characters are removed.",
        f"A chat template that writes today's date writes {PROMPT_DATE:%d %B %Y}.",
    ]
    if lmms is OTHER:
        sentences.append(f"Settings: those of lmms-eval's `{lmms.model}`, even if it has a model for {model_type}.")
    if lmms is LLAVA:
        sentences.append(f"A checkpoint without a chat template gets the bare question; {lmms.model} uses Vicuna's.")
    if lmms is LLAVA and any(task.startswith("scienceqa") for task in tasks):
        sentences.append("scienceqa: questions without an image get none; llava_hf gives them the one before.")
    if lmms.model == "mistral3_vl":
        sentences.append("Prompts: by the chat template; mistral3_vl writes `[INST]` itself, without a system prompt.")
    if lmms.model == "qwen3_vl" and any(task.startswith("mmstar") for task in tasks):
        sentences.append("mmstar: the task's default prompt; qwen3_vl has its own (`Question: `).")
    return sentences
