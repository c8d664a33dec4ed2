"""One user turn as text, the same for the evaluation, the diagnostics and the demo."""

from typing import Any


def user_turn(processor: Any, text: str, images: int) -> str:
    """Render one user turn, with `images` images before the text, in the processor's chat template.

    Without a chat template the image tokens and the text follow each other.
    """
    if not getattr(processor, "chat_template", None):
        return f"{getattr(processor, 'image_token', '') * images}{text}"
    content = [{"type": "image"}] * images + [{"type": "text", "text": text}]
    turn = [{"role": "user", "content": content}]
    return processor.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
