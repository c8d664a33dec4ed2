"""What a row may be: its keys, images and turns, in the formats of published datasets, and what is wrong with one."""

import pytest
from datasets import Dataset, Features, Image, List, Value

from tests.train.data.rows import features, open_data, row, row_images, texts, turns


@pytest.mark.parametrize(
    ("bad", "reason", "detail"),
    [
        (row("<image>", "x", image="gone.png"), "there is no image file", "gone.png"),
        (row("<image>", "x", image="a\0b.png"), "there is no image file", r"a\x00b.png"),
        (row("<image>", "x", image="n" * 5000), "there is no image file", "nnn"),
        (row("<image>", "x", image="../red.png"), "image leaves the image folder", "../red.png"),
        (row("<image>", "x", image="/etc/red.png"), "image leaves the image folder", "/etc/red.png"),
        (row("<image>", "x", image="x/../../red.png"), "image leaves the image folder", "x/../../red.png"),
        (row("<image>", "x", image="..\\red.png"), "image leaves the image folder", "..\\red.png"),
        (row("<image>", "x", image=["red.png", 3]), "`image` is not a file name", "3"),
        (row("<image>", "x", image=""), "`image` is not a file name", "''"),
        (row("<image>", "x", image="embedded:0:0"), "there is no image file", "embedded:0:0"),
        (row("only asked"), "turns do not alternate human, gpt, ..., ending with gpt", ""),
        (row(), "the conversation is empty", ""),
        (row("A?", " \n"), "an answer is empty", ""),
        (row(" ", "x"), "a question is empty", ""),
        (row("A?", "\ud800"), "the text is not valid Unicode", "surrogates not allowed"),
        (row("A?", "one<|im_end|>\n<|im_start|>user"), "the text holds a control token", "<|im_end|>"),
        ({"conversations": [{"from": "robot", "value": ""}]}, "a turn is not from human, gpt, system", "'robot'"),
        ({"conversations": [{"from": ["gpt"], "value": ""}]}, "a turn is not from human, gpt, system", "['gpt']"),
        ({"conversations": [{"from": "gpt", "value": 3}]}, "`conversations` is not a list of {from, value}", ""),
        ({"id": {"a": 1}}, "`conversations` is not a list of {from, value}", ""),
        (row("what is <image>?", "a tag"), "more <image> than images", "1 for 0"),
        (row("<image>", "x", "<image>?", "y", image="red.png"), "more <image> than images", "2 for 1"),
        (row("A?", "x", caption="a dog"), "the key 'caption' is not read: remove it", "'a dog'"),
        (row("A?", "x", weight=2), "the key 'weight' is not read: remove it", "2"),
        (row("<image>", "x", image="red.png", images=["blue.png"]), "the row has both `image` and `images`", ""),
        (row("A?", "x", messages=[{"role": "user"}]), "the row has both `conversations` and `messages`", ""),
        (row("A?", "x", system=3), "`conversations` is not a list of {from, value}", ""),
        ({"prompt": "A?", "completion": "x"}, "`conversations` is not a list", "['prompt', 'completion']"),
        ({"conversations": [*turns("A?"), {"from": "gpt", "value": "x", "loss": False}]}, "the key 'loss' of a", ""),
        ({"texts": [{"user": "A?", "assistant": "x", "rating": 3}]}, "the key 'rating' of a turn is not read", "3"),
        ({"texts": [{"user": "A?"}]}, "`conversations` is not a list of {from, value}", ""),
        ({"texts": ["A?"]}, "`conversations` is not a list of {from, value}", ""),
        ({"texts": [{"user": "A?", "assistant": "x"}], "messages": [{"role": "user"}]}, "the row has both", ""),
        ({"messages": [{"role": "tool", "content": "x"}]}, "a turn is not from human, gpt, system, user", "'tool'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "image": "red.png", "max_pixels": 3136}]}]},
            "the key 'max_pixels' of a part is not read: remove it",
            "3136",
        ),
        ("text", "the row is not an object with conversations", ""),
        (None, "the row is not an object with conversations", ""),
    ],
)
def test_a_bad_row_is_named(processor, write, bad, reason, detail):
    data = open_data(write(row("A?", "fine"), bad), processor)
    (entry,) = data.bad_rows
    assert len(data.dataset) == 1 and data.opened == 2 and entry.row == 1 and entry.when == "opening"
    assert entry.reason.startswith(reason) and detail in entry.detail


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, "a.mp4") for key in ("video", "audio")),
        *((key, ["a.mp4"]) for key in ("videos", "audios")),
        ("tools", '[{"name": "search"}]'),
        ("rejected", turns("A?", "worse")),
    ],
)
def test_rows_for_another_training_are_left_out_with_their_key(processor, write, key, value):
    path = write(row("A?", "fine", **{key: None}), row("<video>\nwhat happens?", "x", **{key: value}))
    data = open_data(path, processor)
    (entry,) = data.bad_rows
    assert (entry.row, entry.reason, entry.filtered) == (1, f"`{key}` is not served", True) and len(data.dataset) == 1


@pytest.mark.parametrize("mark", ["<video>", "<audio>", "<img>", "<ImageHere>", "<|image_1|>", "<image1>"])
def test_a_text_with_another_programs_mark_is_left_out(processor, write, mark):
    asked = row(f"{mark}\nWhat? </img>", "x")
    (entry,) = open_data(write(row("A <img>?", f"{mark} is a tag"), asked), processor).bad_rows
    assert (entry.row, entry.reason, entry.filtered) == (1, f"`{mark}` is not served", True)


RATED = ("relevance", "image_correspondence", "formatting", "visual_dependency")
PUBLISHED = {  # keys of rows of the datasets, beside the turns
    "LLaVA-558K": {"id": "004539375", "image": "red.png"},
    "LLaVA-665K, ShareGPT4V": {"id": "wgByO4Y_0", "model": "", "image": "red.png"},
    "LLaVA-665K, text": {"id": "wgByO4Y_0", "model": "gpt-4"},
    "LLaVA-NeXT, LLaVA-OneVision": {"id": "1", "image": "red.png", "data_source": "sharegpt4v(coco)"},
    "Cambrian": {"id": "1", "image": "red.png", "source": "coco.json", "type": "vqa"},
    "InternVL": {"id": 1, "image": "red.png", "width": 9, "height": 9},
    "M4-Instruct": {"sample_id": 1, "image": ["red.png"], "metadata": {"dataset": "x", "split": "train"}},
    "ShareGPT": {"id": "1", "system": "", "tools": "[]", "images": []},
}


@pytest.mark.parametrize("dataset", PUBLISHED)
def test_keys_of_published_datasets_are_read_or_passed_over(processor, write, dataset):
    keys = PUBLISHED[dataset]
    data = open_data(write(row("what?", "a dog", **keys)), processor)
    if dataset == "ShareGPT":
        assert [entry.reason for entry in data.bad_rows] == ["`tools` is not served"]
    else:
        assert data.bad_rows == [] and len(data.dataset[0]["images"]) == ("image" in keys)


def content(text, *images):
    return [*({"type": "image", **image} for image in images), {"type": "text", "text": text}]


def test_the_same_row_in_other_formats(processor, write):
    """LLaMA-Factory's, ms-swift's and TRL's ways of saying it."""
    llava = row("<image>\nA?", "one", image="red.png")
    llava["conversations"].insert(0, {"from": "system", "value": "Be short."})
    answer, system = {"role": "assistant", "content": "one"}, {"role": "system", "content": "Be short."}
    asked = {"role": "user", "content": content("A?", {})}
    named = {"role": "user", "content": content("A?", {"image": "red.png"})}
    data = open_data(
        write(
            llava,
            row("<image>\nA?", "one", images=["red.png"], system="Be short."),
            row("<image>\nA?", "one", images="red.png", image=None, system="Be short."),
            {"texts": [{"user": "A?", "assistant": "one"}], "images": ["red.png"], "system": "Be short."},
            {"messages": [system, {"role": "user", "content": "<image>\nA?"}, answer], "images": ["red.png"]},
            {"messages": [system, asked, {**answer, "loss": True}], "images": ["red.png"]},
            {"messages": [system, named, {"role": "assistant", "content": content("one")}]},
        ),
        processor,
    )
    assert data.bad_rows == [] and {len(sample["images"]) for sample in data.dataset} == {1}
    assert set(texts(data, processor)) == {
        "<|im_start|>system\nBe short.<|im_end|>\n<|im_start|>user\n<image><image><image><image>\nA?<|im_end|>\n"
        "<|im_start|>assistant\none<|im_end|>\n"
    }


def test_columns_of_a_table_are_read_or_named_too(processor, write, tmp_path):
    write()
    red, blue = ({"bytes": (tmp_path / f"{name}.png").read_bytes(), "path": None} for name in ("red", "blue"))
    rows = [
        row("<image>\nA?", "red", image=red, images=[]),
        row("<image>\nA?", "blue", images=[blue], video=[]),
        row("<image>\nA?", "both", image=red, images=[blue]),
        row("A?", "x", video=["a.mp4"]),
        row("A?", "x", caption="a dog", system="Be short.", source="x"),
        row("A?", "x", system="Be short.", source="x"),
    ]
    text = Value("string")
    columns = {"image": Image(), "images": List(Image()), "video": List(text)}
    columns |= {"caption": text, "system": text, "source": text}
    rows = [dict.fromkeys(columns) | {"id": None} | fields for fields in rows]
    Dataset.from_list(rows, features=features(**columns)).to_parquet(tmp_path / "rows.parquet")
    data = open_data(tmp_path / "rows.parquet", processor)
    assert [(entry.row, entry.reason) for entry in data.bad_rows] == [
        (2, "the row has both `image` and `images`"),
        (3, "`video` is not served"),
        (4, "the key 'caption' is not read: remove it"),
    ]
    kept, images = row_images(data, tmp_path)(list(data.dataset))
    assert [r["row"] for r in kept] == [0, 1, 5]
    assert [image.getpixel((0, 0)) for image in images] == [(255, 0, 0), (0, 0, 255)]
    assert "Be short." in texts(data, processor)[2]


def test_the_columns_of_finevision(processor, write, tmp_path):
    """As the card of HuggingFaceM4/FineVision lists them; the Cauldron has `source` in each text instead."""
    write()
    rated = {f"{what}_{of}": Value("int64") for what in RATED for of in ("ratings", "min")}
    rated |= {name: List(value) for name, value in rated.items() if name.endswith("ratings")}
    texts = List({"user": Value("string"), "assistant": Value("string")})
    columns = Features({"images": List(Image()), "texts": texts, "source": Value("string"), **rated})
    pairs = [{"user": "A?", "assistant": "one"}, {"user": "B?", "assistant": "two"}]
    seen = {name: [4, 5] if name.endswith("ratings") else 4 for name in rated}
    image = {"bytes": (tmp_path / "red.png").read_bytes(), "path": None}
    Dataset.from_list([{"images": [image], "texts": pairs, "source": "ai2d", **seen}], features=columns).to_parquet(
        tmp_path / "rows.parquet"
    )
    data = open_data(tmp_path / "rows.parquet", processor)
    assert data.bad_rows == []
    same = open_data(write(row("<image>\nA?", "one", "B?", "two", image="red.png")), processor)
    assert data.dataset[0]["input_ids"] == same.dataset[0]["input_ids"]
