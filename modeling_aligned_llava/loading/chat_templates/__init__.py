"""The chat template of a checkpoint, and those of the supported language models, by name.

{% generation %} in a template marks the supervised tokens.
"""

import re
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from modeling_aligned_llava.errors import UserError


Span = tuple[int, int]  # characters of a text
# What templates that write today's date are told, so that prompts do not depend on the day: what Llama's write
# without a clock.
PROMPT_DATE = date(2024, 7, 26)
_TODAY = re.compile(r"""strftime_now\(\s*(['"])(.*?)\1\s*\)""")


class TemplateRefuses(UserError):
    """A chat template does not take a conversation (a system turn, an order of turns)."""

    def __init__(self, why: str):
        super().__init__(f"the chat template refuses it: {why}")
        self.why = why


def template_of(processor: Any) -> str | None:
    """The chat template of a processor or, where it has none, of its tokenizer; None if there is neither.

    Raises:
        UserError: there are several, and none is the default.
    """
    for owner in (processor, getattr(processor, "tokenizer", None)):
        template = getattr(owner, "chat_template", None)
        if isinstance(template, dict) and "default" not in template:
            raise UserError(f"there are several chat templates ({', '.join(template)}), and none is called default")
        if template:
            return template["default"] if isinstance(template, dict) else template
    return None


def marks_answers(template: str) -> bool:
    """Whether a template marks the supervised tokens."""
    return re.search(r"{%-?\s*generation\s*-?%}", template) is not None


def rendered(
    tokenizer: PreTrainedTokenizerBase, template: str, messages: list[dict[str, Any]], **options: Any
) -> tuple[str, list[Span]]:
    """A conversation as text, and what the template marks in it where `return_assistant_tokens_mask` asks for that.

    Every prompt is rendered here, on `PROMPT_DATE`.

    Raises:
        TemplateRefuses: the template does not take the conversation, or drops text (a system turn, reasoning).
    """
    render: Any = render_jinja_template
    dated = _TODAY.sub(lambda call: repr(PROMPT_DATE.strftime(call[2])), template)
    said = [(message["role"], part["text"]) for message in messages for part in message["content"] if "text" in part]
    faults: list[str] = []
    errors: list[str] = []
    for turns in (messages, [*map(_as_string, messages)]):  # GLM-4.1V's and Pixtral's take an answer as a string alone
        try:
            (text,), spans = render([turns], chat_template=dated, **tokenizer.special_tokens_map, **options)
        except (TemplateError, TypeError, ValueError, LookupError) as error:  # TypeError: a list of parts and a text
            errors.append(" ".join(str(error).split()))
            continue
        written = "".join(text.split())
        dropped = [role for role, words in said if "".join(words.split()) not in written]
        part = "{'type': "  # what a template of text alone writes for a list of parts: the list itself
        if text.count(part) > sum(words.count(part) for _, words in said):
            faults.append("it takes text only, not a list of text and images")
        elif dropped and template != chat_template("plain"):
            faults.append(f"it drops text of the {dropped[0]} turn")
        else:
            return text, spans[0] if spans else []
    raise TemplateRefuses((faults or errors)[0])


def _as_string(message: dict[str, Any]) -> dict[str, Any]:
    """A message without images with a string as its content."""
    texts = [part.get("text") for part in message["content"]]
    return message if None in texts else {**message, "content": "".join(texts)}


def template_names() -> list[str]:
    """Return the names of the shipped templates."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.jinja"))


@cache
def chat_template(name: str) -> str:
    """Return the text of a shipped template.

    Raises:
        UserError: there is no template of that name; the message lists the names.
    """
    if name not in template_names():
        raise UserError(f"unknown chat template {name!r}; shipped templates: {', '.join(template_names())}")
    return (Path(__file__).parent / f"{name}.jinja").read_text(encoding="utf-8").rstrip("\n")


def choose_template(tokenizer: PreTrainedTokenizerBase, name: str | None, source: str | Path) -> str:
    """Return a shipped template by name, or the tokenizer's own if it marks the supervised tokens.

    Raises:
        UserError: there is neither.
    """
    if name is not None:
        return chat_template(name)
    template = template_of(tokenizer)
    if template is None or not marks_answers(template):
        raise UserError(f"the chat template of {source} has no generation markers: name one with --chat-template")
    return template
