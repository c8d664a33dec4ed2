"""One user turn as text and how to tokenize it, the same for the evaluation, the diagnostics and the demo."""

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


def lacks_special_tokens(tokenizer: Any, prompt: str) -> bool:
    """Whether the tokenizer has to add its special tokens to a rendered prompt (pass it as `add_special_tokens`).

    Llama 3's chat template writes the beginning-of-sequence token and its tokenizer would add a second one; Vicuna's
    (LLaVA-1.5) leaves it to the tokenizer.
    """
    added = tokenizer("")["input_ids"]
    return tokenizer(prompt, add_special_tokens=False)["input_ids"][: len(added)] != added
