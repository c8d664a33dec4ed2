"""The chat templates of the supported language models, by name; {% generation %} marks the supervised tokens."""

from pathlib import Path

from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError


def template_names() -> list[str]:
    """Return the names of the shipped templates."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.jinja"))


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
    own = tokenizer.chat_template
    if not isinstance(own, str) or "generation" not in own.replace("add_generation_prompt", ""):
        raise UserError(f"the chat template of {source} has no generation markers: name one with --chat-template")
    return own
