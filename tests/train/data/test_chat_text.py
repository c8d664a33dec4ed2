"""The answers and end tokens in what chat templates write.

Those of LLaVA-OneVision and LLaVA-1.5 are the official ones (transformers' own tests quote them); of other families
the way in which a turn begins and ends.
"""

import pytest

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.chat_templates import chat_template
from tests.modeling_aligned_llava.tiny_parts import words
from tests.train.data.rows import turns
from train.data.chat_text import ChatText
from train.data.row import BadRow, messages_of


ONEVISION = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + ' '}}{% for content in message['content'] | "
    "selectattr('type', 'equalto', 'image') %}{{ '<image>' }}{% endfor %}{% if message['role'] != 'assistant' %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ '\n' + content['text'] }}"
    "{% endfor %}{% else %}{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}"
    "{% generation %}{{ '\n' + content['text'] }}{% endgeneration %}{% endfor %}{% endif %}{{'<|im_end|>'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
VICUNA = (
    "{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}"
    "{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\n' }}{% endfor %}"
    "{% if message['role'] != 'assistant' %}{% for content in message['content'] | selectattr('type', 'equalto', "
    "'text') %}{{ content['text'] + ' '}}{% endfor %}{% else %}{% for content in message['content'] | "
    "selectattr('type', 'equalto', 'text') %}{% generation %}{{ content['text'] + ' '}}{% endgeneration %}{% endfor %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"
)
PARTS = "{% for c in m['content'] %}{{ '<image>' if c['type'] == 'image' else c['text'] }}{% endfor %}"


def own(before: str, after: str, ask: str, first: str = "", last: str = "") -> str:
    """A template that writes every turn alike; `before` and `after` are expressions."""
    return (
        (first + "{% for m in messages %}{{ " + before + " }}" + PARTS + "{{ " + after + " }}{% endfor %}" + last)
        + "{% if add_generation_prompt %}{{ "
        + ask
        + " }}{% endif %}"
    )


# Family: template, special tokens, end token of the tokenizer, what is supervised of two turns, where the end is from.
FOLLOWS, NONE, WRITES, MARKS = "writes behind", "writes none", "as the template writes", "as the template marks"
TEMPLATES = {
    "llava_onevision": (ONEVISION, [], "<|im_end|>", ["a<|im_end|>", "b<|im_end|>"], FOLLOWS),
    "llava, vicuna": (VICUNA, ["</s>"], "</s>", [" a", " b</s>"], NONE),
    "qwen2_vl, qwen3_vl, internvl, ovis2": (
        own("'<|im_start|>' + m['role'] + '\n'", "'<|im_end|>\n'", "'<|im_start|>assistant\n'"),
        ["<|im_start|>"],
        "<|im_end|>",
        ["a<|im_end|>", "b<|im_end|>"],
        WRITES,
    ),
    "llama 3": (
        own(
            "'<|start_header_id|>' + m['role'] + '<|end_header_id|>\n\n'",
            "'<|eot_id|>'",
            "'<|start_header_id|>assistant<|end_header_id|>\n\n'",
            "{{ bos_token }}",
        ),
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|eot_id|>",
        ["a<|eot_id|>", "b<|eot_id|>"],
        WRITES,
    ),
    "smolvlm, idefics3": (
        own("m['role'] | capitalize + ': '", "'<end_of_utterance>\n'", "'Assistant:'", "<|im_start|>"),
        ["<end_of_utterance>"],
        "<end_of_utterance>",
        [" a<end_of_utterance>", " b<end_of_utterance>"],
        WRITES,
    ),
    "gemma3": (
        own(
            "'<start_of_turn>' + ('model' if m['role'] == 'assistant' else m['role']) + '\n'",
            "'<end_of_turn>\n'",
            "'<start_of_turn>model\n'",
        ),
        ["<start_of_turn>", "<end_of_turn>", "<eos>"],
        "<eos>",
        ["a<end_of_turn>", "b<end_of_turn>"],
        WRITES,
    ),
    "mistral3, pixtral": (
        own("'[INST]' if m['role'] == 'user' else ''", "'[/INST]' if m['role'] == 'user' else '</s>'", "''"),
        ["[INST]", "[/INST]", "</s>"],
        "</s>",
        ["a</s>", "b</s>"],
        WRITES,
    ),
    "glm4v": (
        own("'<|' + m['role'] + '|>\n'", "''", "'<|assistant|>\n'"),
        ["<|user|>", "<|assistant|>", "<|endoftext|>"],
        "<|endoftext|>",
        ["a", "b<|endoftext|>"],
        NONE,
    ),
    "phi 3 vision": (
        own("'<|' + m['role'] + '|>\n'", "'<|end|>\n'", "'<|assistant|>\n'"),
        ["<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>"],
        "<|endoftext|>",
        ["a<|end|>", "b<|end|>"],
        WRITES,
    ),
    "granite vision": (
        own("'<|' + m['role'] + '|>\n'", "'\n' if m['role'] == 'user' else '<|end_of_text|>'", "'<|assistant|>\n'"),
        ["<|user|>", "<|assistant|>", "<|end_of_text|>"],
        "<|end_of_text|>",
        ["a<|end_of_text|>", "b<|end_of_text|>"],
        WRITES,
    ),
    "ours": (chat_template("qwen2_5"), ["<|im_start|>"], "<|im_end|>", ["a<|im_end|>", "b<|im_end|>"], MARKS),
}


def chat(template, special=(), end="<|im_end|>"):
    tokenizer = words(*(token for token in special if not token.startswith("<|im_")))
    tokenizer.add_special_tokens({"eos_token": end, "bos_token": "<s>"})
    return ChatText(tokenizer, template)


def supervised(how, *texts):
    text, answers = how(messages_of(turns(*texts), texts[0].count("<image>")))
    return text, [text[start:end] for start, end in answers]


@pytest.mark.parametrize("family", TEMPLATES)
def test_templates_of_the_families_teach_to_end(family):
    template, special, end, expected, origin = TEMPLATES[family]
    how = chat(template, special, end)
    text, found = supervised(how, "<image>\nq", "a", "r", "b")
    assert found == expected and text.rstrip().endswith(expected[-1])
    assert origin in how.ending()[1] and how.ending()[0] == expected[-1].lstrip(" ")[1:]


def test_a_marked_answer_follows_the_generation_prompt():
    text, _ = supervised(chat(ONEVISION), "q", "a", "r", "b")
    assert text == (
        "<|im_start|>user \nq<|im_end|><|im_start|>assistant\na<|im_end|>"
        "<|im_start|>user \nr<|im_end|><|im_start|>assistant\nb<|im_end|>"
    )
    text, _ = supervised(chat(VICUNA, ["</s>"], "</s>"), "<image>\nq", "a", "r", "b")
    assert text == "USER: <image>\nq ASSISTANT: a USER: r ASSISTANT: b</s>"


MARKED = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}ANSWER {% generation %}{{ m['content'][0]['text'] }}%s"
    "{% endif %}{% if m['role'] != 'assistant' %}{{ m['content'][0]['text'] }}{% endif %}{% endfor %}%s"
)


@pytest.mark.parametrize(
    ("after", "at_the_end", "expected"),
    [
        (" \n{% endgeneration %}<|im_end|>", "", ["a \n<|im_end|>", "b \n<|im_end|>"]),
        ("{% endgeneration %} \n<|im_end|>\n", "", ["a \n<|im_end|>", "b \n<|im_end|>"]),
        ("{% endgeneration %}", "{{ eos_token }}", ["a", "b<|im_end|>"]),
        ("{% endgeneration %}{{ eos_token if not loop.last }}", "", ["a<|im_end|>", "b<|im_end|>"]),
        ("{% endgeneration %}<|im_start|>", "", ["a<|im_start|>", "b<|im_start|>"]),  # what the last answer ends with
        ("<|im_end|>{% endgeneration %}\n", "", ["a<|im_end|>", "b<|im_end|>"]),
        ("{% endgeneration %} .", "", ["a", "b<|im_end|>"]),
    ],
)
def test_an_end_token_behind_the_mark(after, at_the_end, expected):
    _, found = supervised(chat(MARKED.replace("%s", after, 1).replace("%s", at_the_end)), "q", "a", "r", "b")
    assert found == expected


def test_a_template_that_refuses_a_row_leaves_it_out():
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    row = messages_of([{"from": "system", "value": "Be short."}, *turns("q", "a")], 0)
    for template, why in (
        (refusing + ONEVISION, "System role not supported"),
        ("{{ 'x' + messages[0].content }}", "it drops text of the user turn"),
    ):
        with pytest.raises(BadRow, match=f"the chat template refuses it: .*{why}") as fault:
            chat(template)(row)
        assert fault.value.filtered
    text_only = "{% for m in messages %}{{ m['role'] ~ ': ' ~ m['content'] }}{% endfor %}"  # writes the list itself
    with pytest.raises(BadRow, match="it takes text only"):
        chat(text_only)(messages_of(turns("<image>q", "a"), 1))


GLM = (  # the official one, of GLM-4.1V
    "[gMASK]<sop>\n{%- for msg in messages %}\n    {%- if msg.role == 'system' %}\n<|system|>\n{{ msg.content }}\n    "
    "{%- elif msg.role == 'user' %}\n<|user|>{{ '\n' }}\n        {%- if msg.content is string %}\n{{ msg.content }}\n"
    "        {%- else %}\n            {%- for item in msg.content %}\n                {%- if item.type == 'image' %}\n"
    "<|begin_of_image|><|image|><|end_of_image|>\n                {%- elif item.type == 'text' %}\n{{ item.text }}\n"
    "                {%- endif %}\n            {%- endfor %}\n        {%- endif %}\n    "
    "{%- elif msg.role == 'assistant' %}\n<|assistant|>\n{{ msg.content }}\n    {%- endif %}\n{%- endfor %}\n"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)


def test_a_template_may_take_text_alone_as_a_string():
    row = messages_of([{"from": "system", "value": "Be short."}, *turns("<image>\nq", "a", "r", "b")], 1)
    text, answers = chat(GLM, ["<|image|>", "<|endoftext|>"], "<|endoftext|>")(row)
    assert text == (
        "[gMASK]<sop><|system|>\nBe short.<|user|>\n<|begin_of_image|><|image|><|end_of_image|>q"
        "<|assistant|>\na<|user|>\nr<|assistant|>\nb<|endoftext|>"
    )
    assert [text[slice(*span)] for span in answers] == ["a", "b<|endoftext|>"]


REASONING = (  # DeepSeek-R1's drops it everywhere, Qwen3's in earlier turns
    "{% for m in messages %}<|{{ m.role }}|>{% set said = m.content[0].text %}{% if m.role == 'assistant' and {} %}"
    "{% set said = said.split('</think>')[-1] %}{% endif %}{{ said }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_a_row_whose_reasoning_or_question_the_template_drops_is_left_out():
    thought, last = turns("q", "<think>\nso</think>a"), turns("q", "a", "r", "<think>so</think>a")
    everywhere, earlier = (chat(REASONING.replace("{}", when)) for when in ("true", "not loop.last"))
    for how, row in ((everywhere, thought), (everywhere, last), (earlier, [*thought, *turns("r", "b")])):
        with pytest.raises(BadRow, match="refuses it: it drops text of the assistant turn") as fault:
            how(messages_of(row, 0))
        assert fault.value.filtered
    assert supervised(earlier, "q", "<think>so </think>a")[1] == ["<think>so </think>a<|im_end|>"]
    with pytest.raises(BadRow, match="it drops text of the user turn"):
        chat(REASONING.replace("m.content[0].text", "m.content[0].content or m.role"))(messages_of(thought, 0))


def test_a_system_turn_is_never_dropped_and_an_end_token_never_invented():
    row = messages_of([{"from": "system", "value": "Be short."}, *turns("question", "a")], 0)
    dropping = "{% for m in messages if m['role'] != 'system' %}" + PARTS + "<|im_end|>{% endfor %}"
    with pytest.raises(BadRow, match="refuses it: it drops text of the system turn"):
        chat(dropping)(row)
    assert chat(chat_template("plain"))(row)[0] == "<s>a<|im_end|>"
    how, other = chat(ONEVISION), chat(VICUNA)
    how.tokenizer.eos_token = other.tokenizer.eos_token = None
    assert supervised(how, "q", "a")[1] == ["a<|im_end|>"]
    with pytest.raises(UserError, match="neither the chat template nor the tokenizer"):
        other(messages_of(turns("q", "None"), 0))
    with pytest.raises(UserError, match="marks no supervised tokens"):
        silent = "{% if false %}{% generation %}{% endgeneration %}{% endif %}"
        chat(f"{{% for m in messages %}}{PARTS}{{% endfor %}}{silent}")(row)
