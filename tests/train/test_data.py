"""From LLaVA's JSON to batches: what is learned, what is an image, and what is refused."""

import json

import pytest
import torch
from PIL import Image
from transformers import AutoProcessor

from modeling_aligned_llava.chat_templates import chat_template
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.images import open_image
from train.collator import ImageTextCollator
from train.conversations import read_conversations
from train.tokenization import IGNORED, tokenize_conversations


@pytest.fixture
def processor(tiny_checkpoint):
    return AutoProcessor.from_pretrained(tiny_checkpoint("norm"))


@pytest.fixture
def write(tmp_path):
    Image.new("RGB", (9, 9), (255, 0, 0)).save(tmp_path / "red.png")

    def make(*rows):
        (tmp_path / "data.json").write_text(json.dumps(rows))
        return tmp_path / "data.json"

    return make


def row(*turns, **fields):
    roles = ("human", "gpt")
    return {**fields, "conversations": [{"from": roles[i % 2], "value": text} for i, text in enumerate(turns)]}


def tokenize(path, processor, template="tinyworld", max_length=None):
    rows = read_conversations(path, path.parent)
    return tokenize_conversations(
        rows,
        processor.tokenizer,
        template=chat_template(template),
        image_token_id=processor.image_token_id,
        image_tokens=4,
        max_length=max_length,
        source="data",
    )


def test_multi_turn_row_learns_each_answer_and_its_end(processor, write):
    path = write(row("<image>\nA?", "one", "B?", "two", image="red.png"))
    dataset, left_out = tokenize(path, processor)
    (sample,) = dataset
    text = processor.tokenizer.decode(sample["input_ids"])
    assert left_out == 0 and sample["length"] == len(sample["input_ids"])
    assert text == (
        "<|im_start|>user\n<image><image><image><image>\nA?<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\nB?<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
    )
    kept = [i for i in sample["labels"] if i != IGNORED]
    assert processor.tokenizer.decode(kept) == "one<|im_end|>two<|im_end|>"
    assert all(label in (IGNORED, i) for i, label in zip(sample["input_ids"], sample["labels"], strict=True))


def test_plain_prompt_is_image_caption_end(processor, write):
    (sample,) = tokenize(write(row("<image>\nDescribe.", "a dog", image="red.png")), processor, "plain")[0]
    assert processor.tokenizer.decode(sample["input_ids"]) == "<image>" * 4 + "a dog<|im_end|>"
    assert sample["labels"] == [IGNORED] * 4 + sample["input_ids"][4:]


def test_only_the_placeholder_is_an_image(processor, write):
    path = write(
        row("what is <image> in HTML?", "the <image> tag"),
        row("look: <image>", "yes", "and <image>?", "text", image="red.png"),
        row("no placeholder", "fine", image="red.png"),
    )
    samples = list(tokenize(path, processor)[0])
    assert [s["input_ids"].count(processor.image_token_id) for s in samples] == [0, 4, 4]
    texts = [processor.tokenizer.decode(s["input_ids"]) for s in samples]
    assert "the < image > tag" in texts[0] and "and < image >?" in texts[1]
    assert texts[1].startswith("<|im_start|>user\n<image><image><image><image>\nlook:<|im_end|>")


def test_long_rows_are_left_out_whole(processor, write):
    path = write(row("<image>\nA?", "long " * 30, image="red.png"), row("B?", "short"))
    dataset, left_out = tokenize(path, processor, max_length=80)
    assert left_out == 1 and "short" in processor.tokenizer.decode(dataset[0]["input_ids"])
    with pytest.raises(UserError, match="data: every row is longer than max_length 3"):
        tokenize(path, processor, max_length=3)


def test_collator_pads_and_preprocesses_like_the_processor(processor, write):
    path = write(row("<image>\nA?", "one", image="red.png"), row("longer question?", "two"))
    rows = list(tokenize(path, processor)[0])
    pad = processor.tokenizer.pad_token_id
    batch = ImageTextCollator(processor.image_processor, pad)(rows)
    shorter, longer = sorted(rows, key=lambda r: r["length"])
    i, width, length = rows.index(shorter), longer["length"], shorter["length"]
    assert batch["input_ids"][i].tolist() == shorter["input_ids"] + [pad] * (width - length)
    assert batch["labels"][i].tolist() == shorter["labels"] + [IGNORED] * (width - length)
    assert batch["attention_mask"][i].tolist() == [1] * length + [0] * (width - length)
    text = "<image>\n"
    theirs = processor(images=[Image.open(path.parent / "red.png")], text=[text], return_tensors="pt")
    assert torch.equal(batch["pixel_values"], theirs["pixel_values"])
    text_only = ImageTextCollator(processor.image_processor, pad)(rows[1:])
    assert set(text_only) == {"input_ids", "labels", "attention_mask"}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (row("<image>", "x", image="gone.png", id="7"), r"row 1 \(id 7\): there is no image file .*gone\.png"),
        (row("<image>", "x", image="../red.png"), r"row 1: image \.\./red\.png leaves the image folder"),
        (row("<image>", "x", image="/etc/red.png"), "row 1: image /etc/red.png leaves the image folder"),
        (row("<image>", "x", image=["red.png"]), "row 1: `image` must be one file name"),
        (row("only asked"), "row 1: turns must alternate human, gpt"),
        ({"conversations": [{"from": "robot", "value": ""}]}, "row 1: a turn is from 'robot'"),
        ({"id": 3}, r"row 1 \(id 3\): `conversations` must be a list"),
        ("text", "row 1: not an object"),
    ],
)
def test_a_bad_row_is_named_in_one_line(write, bad, message):
    path = write(row("A?", "fine"), bad)
    with pytest.raises(UserError, match=message) as error:
        read_conversations(path, path.parent)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_a_template_without_markers_is_refused(processor, write):
    path = write(row("A?", "one"))
    with pytest.raises(UserError, match="data, row 0: there is no answer to learn from"):
        tokenize_conversations(
            read_conversations(path, path.parent),
            processor.tokenizer,
            template="{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}",
            image_token_id=processor.image_token_id,
            image_tokens=4,
            max_length=None,
            source="data",
        )


def test_missing_and_broken_files_are_named(tmp_path):
    with pytest.raises(UserError, match=r"data_path: there is no file .*none\.json"):
        read_conversations(tmp_path / "none.json", tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match=r"broken\.json is not JSON"):
        read_conversations(tmp_path / "broken.json", tmp_path)
    (tmp_path / "fake.png").write_text("no image")
    with pytest.raises(UserError, match=r"fake\.png cannot be read as an image"):
        open_image(str(tmp_path / "fake.png"))
