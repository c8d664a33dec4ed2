"""Rows for other families: what their own processor makes of them, with the answers and end tokens supervised."""

import pytest
from PIL import Image

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import FAMILIES
from tests.modeling_aligned_llava.tiny_families import BUILDERS
from tests.train.data.rows import turns
from train.data.family_tokens import FamilyCollator, FamilyTokens
from train.data.row import BadRow, messages_of


ASKED = [
    (["<image>\nwhat is it?", "a cat"], [(40, 30)]),
    (["<image>\nwhat?", "dog", "and?", "no more"], [(30, 60)]),
    (["no image", "right"], []),
    (["<image> and <image>: same?", "yes"], [(28, 28), (50, 20)]),
    (["<image>tiny", "one"], [(1, 1)]),
]
END = "<|im_end|>"


def row(texts, sizes):
    images = [f"{width}x{height}" for width, height in sizes]
    return {"messages": messages_of(turns(*texts), len(sizes)), "images": images, "sizes": sizes}


def noise(rows):
    """Stands in for `RowImages`."""
    sizes = [tuple(map(int, name.split("x"))) for each in rows for name in each["images"]]
    return rows, [Image.effect_noise(size, 50).convert("RGB") for size in sizes]


def encoder(name, max_length=None, template=None):
    model, processor = BUILDERS[name]()
    if template is not None:
        processor.chat_template = template
    return FamilyTokens(processor, model.config, max_length)


def answers(encoder, labels):
    """The supervised text of a row, one string for each stretch of it."""
    kept = "".join(encoder.tokenizer.decode([i]) if i >= 0 else "\0" for i in labels)
    return [text for text in kept.split("\0") if text]


@pytest.mark.parametrize("name", FAMILIES)
def test_answers_and_end_tokens_are_supervised_and_lengths_are_told(name):
    how = encoder(name)
    rows = [row(*asked) for asked in ASKED]
    found = how(rows)
    good = [{**own, **stored} for own, stored in zip(rows, found, strict=True) if not isinstance(stored, BadRow)]
    if how.takes_suffix:
        assert [str(each).partition(":")[0] for each in found if isinstance(each, BadRow)] == [
            "the model has no chat template",
            "the model's processor refuses it",
        ]
    else:
        assert len(good) == len(ASKED)
    batch = FamilyCollator(how, noise)(good)
    assert batch["attention_mask"].sum(1).tolist() == [own["length"] for own in good]
    expected = [
        [message["content"][0]["text"] + END for message in own["messages"] if message["role"] == "assistant"]
        for own in good
    ]
    assert [answers(how, labels) for labels in batch["labels"]] == expected
    visual = batch["input_ids"] == how.config.image_token_id
    assert visual.any(1).tolist() == [bool(own["images"]) for own in good]


def test_marks_of_the_template_decide():
    marked = (
        "{% for m in messages %}{{ m['role'] + ': ' }}{% for c in m['content'] %}{% if c['type'] == 'image' %}<image>"
        "{% elif m['role'] == 'assistant' %}{% generation %}{{ c['text'] }}{% endgeneration %}{{ '<|im_end|>' }}"
        "{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    )
    how = encoder("llava", template=marked)
    rows = [row(*asked) for asked in ASKED[:2]]
    stored = [{**own, **text} for own, text in zip(rows, how(rows), strict=True)]
    found = [answers(how, labels) for labels in FamilyCollator(how, noise)(stored)["labels"]]
    assert found == [[f"a cat{END}"], [f"dog{END}", f"no more{END}"]]


def test_an_answer_that_the_template_does_not_end_gets_the_end_token():
    plain = (
        "{% for m in messages %}{{ m['role'] + ':' }}{% for c in m['content'] %}{{ '<image>' if c['type'] == 'image' "
        "else ' ' + c['text'] + ' ' }}{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
    )
    how = encoder("llava", template=plain)
    (stored,) = how([row(*ASKED[1])])
    assert stored["text"].endswith(f"assistant: no more{END}")
    assert [stored["text"][start:end] for start, end in stored["answers"]] == [" dog", f" no more{END}"]


def test_a_template_that_rewrites_earlier_turns_is_refused():
    parts = "{% for c in m['content'] %}{{ c['text'] }}{% endfor %}"
    changing = "{% for m in messages %}{{ m['role'] if loop.last }}" + parts + "{% endfor %}"
    with pytest.raises(UserError, match="changes what it wrote for earlier turns"):
        encoder("llava", template=changing)([row(["a", "b", "c", "d"], [])])
    with pytest.raises(UserError, match="writes 0 images for a row of 1"):
        marked = "{% for m in messages %}{% generation %}" + parts + "{% endgeneration %}{% endfor %}"
        encoder("llava", template=marked)([row(*ASKED[0])])


@pytest.mark.parametrize(
    ("name", "token"), [("qwen2_vl", "<|image_pad|>"), ("gemma3", "<start_of_image>"), ("mistral3", "[IMG]")]
)
def test_the_familys_own_tokens_in_a_text_are_refused(name, token):
    (found,) = encoder(name)([row([f"what is {token}?", "a token"], [])])
    assert str(found) == f"the text holds a control token: {token}" and not found.filtered


def test_a_token_that_the_model_has_no_embedding_for_is_damage():
    how = encoder("llava")
    how.tokenizer.add_tokens(["<loc1>"])
    good, bad = how([row(["where?", "there"], []), row(["where?", "<loc1>"], [])])
    assert good["length"] and "no embedding for a token: resize_token_embeddings: <loc1>" in str(bad)


def test_rows_that_are_too_long_are_filtered():
    how = encoder("qwen2_vl", max_length=40)
    small, large = how([row(["<image>what?", "a"], [(28, 28)]), row(["<image>what?", "a"], [(56, 56)])])
    assert small["length"] <= 40 and isinstance(large, BadRow) and large.filtered


def test_the_pieces():
    how = encoder("llava")
    own = row(*ASKED[1])
    stored = {**own, **how([own])[0]}
    assert "".join(text for _, text in how.pieces(stored)) == stored["text"]
    assert [text for kind, text in how.pieces(stored) if kind == "supervised"] == [f"dog{END}", f"no more{END}"]
    assert how.supervised({name: [stored[name]] for name in how.columns}) == [len("dog") + 1 + len("no more") + 1]
