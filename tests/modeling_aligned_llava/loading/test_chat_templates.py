"""The shipped chat templates, character by character, and the tokens that each marks as supervised."""

import pytest
from transformers import PreTrainedTokenizerFast

from modeling_aligned_llava.loading.chat_templates import chat_template, template_names
from tests.conftest import tiny_tokenizer


CONVERSATION = [
    {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "How many?"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "Two."}]},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes."},
]
CHATML = (
    "<|im_start|>user\n<image>\nHow many?<|im_end|>\n<|im_start|>assistant\nTwo.<|im_end|>\n"
    "<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\nYes.<|im_end|>\n"
)
LLAMA3 = (
    "<s><|start_header_id|>user<|end_header_id|>\n\n<image>\nHow many?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nTwo.<|eot_id|>"
    "<|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\nYes.<|eot_id|>"
)
ANSWERS = "Two.<|im_end|>Yes.<|im_end|>"
# What a conversation is written as, what of it is learned, and what an answer follows.
TEMPLATES = {
    "qwen2_5": (CHATML, ANSWERS, "<|im_start|>assistant\n"),
    "tinyworld": (CHATML, ANSWERS, "<|im_start|>assistant\n"),
    "llama3": (LLAMA3, ANSWERS.replace("im_end", "eot_id"), "<|start_header_id|>assistant<|end_header_id|>\n\n"),
    "plain": (f"<s><image>{ANSWERS}", ANSWERS, ""),
}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<s>"})
    return tokenizer


@pytest.mark.parametrize("name", template_names())
def test_a_conversation_renders_exactly_and_marks_the_answers_and_their_ends(tokenizer, name):
    template, (rendered, supervised, prompt) = chat_template(name), TEMPLATES[name]
    assert tokenizer.apply_chat_template(CONVERSATION, chat_template=template, tokenize=False) == rendered
    asked = tokenizer.apply_chat_template(
        CONVERSATION[:1], chat_template=template, tokenize=False, add_generation_prompt=True
    )
    assert asked.endswith(prompt) and rendered.startswith(asked)
    encoded = tokenizer.apply_chat_template(
        CONVERSATION, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
    )
    learned = [i for i, m in zip(encoded["input_ids"], encoded["assistant_masks"], strict=True) if m]
    assert tokenizer.decode(learned) == supervised


def test_a_system_text_is_written_only_when_given(tokenizer):
    given = [{"role": "system", "content": "Be brief."}, *CONVERSATION[:1]]
    for name, expected in (
        ("qwen2_5", "<|im_start|>system\nBe brief.<|im_end|>\n"),
        ("llama3", "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"),
    ):
        text = tokenizer.apply_chat_template(given, chat_template=chat_template(name), tokenize=False)
        assert text.startswith(expected)
