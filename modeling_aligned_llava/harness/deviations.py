"""How lmms-eval itself runs a family, which the adapter follows, and where it does not."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any


ASSISTANT = "You are a helpful assistant."


@dataclass(frozen=True)
class Stock:
    """The settings of lmms-eval's own model for a family (version 0.7.3, its chat class where there is one).

    Args:
        model: its name in lmms-eval.
        max_new_tokens: for tasks without a limit of their own (MM-Star).
        system_prompt: put before every question; None: what the chat template writes by itself.
        processor: what it changes in the checkpoint's processor.
        until: whether it honours a task's stop strings: "yes", "no", or "but an empty line".
        samples: whether it draws answers at random where a task does not set a temperature.
        repetition_penalty: how much less likely it makes tokens that stand in the prompt or the answer.
    """

    model: str
    max_new_tokens: int
    system_prompt: str | None = None
    processor: dict[str, Any] = field(default_factory=dict)
    until: str = "no"
    samples: bool = False
    repetition_penalty: float = 1.0

    def answer_tokens(self, asked: int | None, most: int | None) -> int:
        """How long an answer may be: as the task asks (None: this family's own length), but at most `most`."""
        limit = asked or self.max_new_tokens
        return min(limit, most or limit)


LLAVA = Stock("llava_hf", 1024)


def _pixels(least: int, most: int) -> dict[str, Any]:
    return {"size": {"shortest_edge": least, "longest_edge": most}}


LARGE_IMAGES = _pixels(256 * 28 * 28, 1_605_632)
OTHER = Stock("huggingface", 4096)
STOCK: dict[str, Stock] = {
    "llava": LLAVA,
    "aligned_llava": LLAVA,
    "llava_next": LLAVA,
    "llava_onevision": LLAVA,
    "qwen2_vl": Stock("qwen2_vl", 128, ASSISTANT, _pixels(3136, 602_112), until="yes"),
    "qwen2_5_vl": Stock("qwen2_5_vl", 128, processor=LARGE_IMAGES),
    "qwen3_vl": Stock("qwen3_vl", 128, ASSISTANT, LARGE_IMAGES),
    "internvl": Stock("internvl_hf", 1024),
    "gemma3": Stock("gemma3", 128, ASSISTANT, until="but an empty line"),
    "mistral3": Stock("mistral3_vl", 512, samples=True, repetition_penalty=1.2),
    "glm4v": Stock("glm4v", 8192, until="yes"),
}


def stock(model_type: str) -> Stock:
    """Return lmms-eval's settings for a family; those of its generic model if it has none for it."""
    return STOCK.get(model_type, OTHER)


def deviations(model_type: str, tasks: Collection[str]) -> list[str]:
    """Return, in short sentences, where the answers of a family are not made as lmms-eval makes them.

    Args:
        model_type: of the checkpoint's configuration.
        tasks: names of lmms-eval's tasks.
    """
    own = stock(model_type)
    found = [
        f"Special tokens: one beginning-of-sequence token, by transformers' rule; {own.model} lets the tokenizer add "
        "one even where the chat template has written it.",
        "Answers: greedy, and control characters are removed.",
    ]
    if own is OTHER:
        found.append(f"Settings: lmms-eval has no model for {model_type}; they are those of its `{own.model}`.")
    if own.until != "yes":
        ignored = "ignores them" if own.until == "no" else "ignores an empty line"
        found.append(f"Stop strings of a task end an answer; {own.model} {ignored}.")
    if own.samples:
        found.append(f"{own.model} samples its answers where a task sets no temperature.")
    if own.repetition_penalty != 1:
        found.append(f"{own.model} penalizes repetition ({own.repetition_penalty}).")
    if own is LLAVA:
        found.append(f"A checkpoint without a chat template gets the bare question; {own.model} uses Vicuna's.")
    if own is LLAVA and any(task.startswith("scienceqa") for task in tasks):
        found.append("scienceqa: questions without an image get none; llava_hf gives them the one before.")
    if model_type == "qwen3_vl" and any(task.startswith("mmstar") for task in tasks):
        found.append("mmstar: the task's default prompt; qwen3_vl has its own (`Question: `).")
    return found
