"""The chat templates of the supported language models, by name; {% generation %} marks the supervised tokens."""

from pathlib import Path

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
