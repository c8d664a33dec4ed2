"""On text-only chats the templates are TRL's shipped ones, but for the date and Qwen's default system text."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from modeling_aligned_llava.loading.chat_templates import chat_template
from tests.real_tokenizers import spans


TRL = Path(str(find_spec("trl").origin)).parent / "chat_templates"
SPECIAL = {
    "llama3": ["<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|end_of_text|>"],
    "qwen2_5": ["<|endoftext|>", "<|im_end|>", "<|im_start|>"],
}
# What TRL's render and ours do not.
LLAMA_DATES = re.compile(r"Cutting Knowledge Date: December 2023\nToday Date: .*\n\n")
LLAMA_EMPTY_SYSTEM = "<|start_header_id|>system<|end_header_id|>\n\n<|eot_id|>"
QWEN_SYSTEM = "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"


def says(role, text):
    return {"role": role, "content": text}


CHATS = {
    "one turn": [says("user", "How many?"), says("assistant", "Two.")],
    "three turns": [
        message
        for number in range(3)
        for message in (says("user", f"Question {number}?"), says("assistant", f"Answer {number}\nin two lines."))
    ],
    "white space": [says("user", "  Padded?\n"), says("assistant", "\n indented\n\n")],
    "a system text": [says("system", "Be brief."), says("user", "Why?"), says("assistant", "So.")],
    "not ASCII": [says("user", "Où est 猫?"), says("assistant", "là-bas 🐈")],
    "only asked": [says("user", "And now?")],
}


@pytest.fixture(scope="module", params=SPECIAL)
def family(request):
    """Name of a template, and a byte-level tokenizer with the real control tokens of its model."""
    special = SPECIAL[request.param]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokens = {"eos_token": special[1], "pad_token": special[-1]}
    if request.param == "llama3":
        tokens["bos_token"] = special[0]
    stand_in = PreTrainedTokenizerFast(tokenizer_object=tokenizer, **tokens)
    stand_in.add_special_tokens({"additional_special_tokens": [*special, "<image>"]})
    return request.param, stand_in


def trl_template(name):
    return (TRL / f"{name}.jinja").read_text(encoding="utf-8")


def parts(chat):
    return [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in chat]


@pytest.mark.parametrize("chat", CHATS.values(), ids=CHATS)
def test_text_only_chats_render_as_trl_renders_them(family, chat):
    name, tokenizer = family
    asks = chat[-1]["role"] == "user"
    theirs = tokenizer.apply_chat_template(
        chat,
        chat_template=trl_template({"llama3": "llama3_2"}.get(name, name)),
        tokenize=False,
        add_generation_prompt=asks,
    )
    if name == "llama3":
        without = LLAMA_DATES.sub("", theirs).replace(LLAMA_EMPTY_SYSTEM, "")
    else:
        without = theirs.removeprefix(QWEN_SYSTEM)
    assert without != theirs or chat[0]["role"] == "system"
    ours = {"chat_template": chat_template(name), "tokenize": False, "add_generation_prompt": asks}
    assert tokenizer.apply_chat_template(chat, **ours) == without
    assert tokenizer.apply_chat_template(parts(chat), **ours) == without


@pytest.mark.parametrize("chat", [chat for chat in CHATS.values() if len(chat) > 1])
def test_what_is_learned_is_what_trl_learns(family, chat):
    """TRL's Qwen template also marks the line breaks before and after an answer; ours leaves them to the prompt."""
    name, tokenizer = family

    def supervised(template):
        encoded = tokenizer.apply_chat_template(
            chat, chat_template=template, return_dict=True, return_assistant_tokens_mask=True
        )
        return [tokenizer.decode(span) for span in spans(encoded["input_ids"], encoded["assistant_masks"])]

    theirs = supervised(trl_template(f"{name}_training"))
    if name == "qwen2_5":
        theirs = [span.removeprefix("\n").removesuffix("\n") for span in theirs]
    assert supervised(chat_template(name)) == theirs
    assert len(theirs) == sum(message["role"] == "assistant" for message in chat)


GOLDEN = {
    "llama3": (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n<image>\n<image>\nSame?<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nNo.<|eot_id|>"
    ),
    "qwen2_5": "<|im_start|>user\n<image>\n<image>\nSame?<|im_end|>\n<|im_start|>assistant\nNo.<|im_end|>\n",
}


def test_images_are_one_line_each(family):
    name, tokenizer = family
    image = {"type": "image"}
    asked = {"role": "user", "content": [image, image, {"type": "text", "text": "Same?"}]}
    chat = [asked, says("assistant", "No.")]
    encoded = tokenizer.apply_chat_template(chat, chat_template=chat_template(name), return_dict=True)
    assert tokenizer.decode(encoded["input_ids"]) == GOLDEN[name]
    assert encoded["input_ids"].count(tokenizer.convert_tokens_to_ids("<image>")) == 2
