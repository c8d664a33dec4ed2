"""From LLaVA's rows to batches: supervised tokens, images, sources, and rejected rows."""

import json
from collections import Counter

import pytest
import torch
from datasets import Dataset, Features, Image, List, Value
from PIL import Image as Pictures

from modeling_aligned_llava.errors import UserError
from tests.one_line import one_line
from tests.train.data.rows import features, tokenization, turns
from train.data.images import RowImages, first_images
from train.data.llava_tokens import ImageTextCollator, LlavaTokens
from train.data.prepared import open_training_data, row_lengths
from train.data.quarantine import Quarantine
from train.data.row_tokens import IGNORE_INDEX
from train.data.sources import read_sources


@pytest.fixture
def write(tmp_path):
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        Pictures.new("RGB", (9, 9), colour).save(tmp_path / f"{name}.png")

    def make(*rows, name="data.json"):
        (tmp_path / name).write_text(json.dumps(rows))
        return tmp_path / name

    return make


def row(*texts, **fields):
    return {**fields, "conversations": turns(*texts)}


def open_data(path, processor, template="tinyworld", max_length=None):
    sources = read_sources(str(path), str(path.parent))
    return open_training_data(sources, tokenization(processor, max_length, template), path.parent / "cache")


def row_images(data, folder, limit=0.5):
    return RowImages(data, Quarantine(folder / "quarantine.jsonl", data.opened, limit), seed=42)


def texts(data, processor):
    return [processor.tokenizer.decode(sample["input_ids"]) for sample in data.dataset]


def test_each_answer_of_a_row_and_its_end_are_supervised_without_white_space(processor, write):
    data = open_data(write(row("<image>\nA?", "\n one", "B?", "two\n", image="red.png")), processor)
    (sample,) = data.dataset
    assert data.bad_rows == [] and sample["length"] == len(sample["input_ids"]) == row_lengths(data.dataset)[0]
    assert texts(data, processor) == [
        "<|im_start|>user\n<image><image><image><image>\nA?<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
        "<|im_start|>user\nB?<|im_end|>\n<|im_start|>assistant\ntwo<|im_end|>\n"
    ]
    kept = [i for i in sample["labels"] if i != IGNORE_INDEX]
    assert processor.tokenizer.decode(kept) == "one<|im_end|>two<|im_end|>"
    assert all(label in (IGNORE_INDEX, i) for i, label in zip(sample["input_ids"], sample["labels"], strict=True))


def test_plain_prompt_is_image_caption_end(processor, write):
    data = open_data(write(row("<image>\nDescribe.", "a dog", image="red.png")), processor, "plain")
    (sample,) = data.dataset
    assert texts(data, processor) == ["<image>" * 4 + "a dog<|im_end|>"]
    assert sample["labels"] == [IGNORE_INDEX] * 4 + sample["input_ids"][4:]


def test_only_the_placeholder_is_an_image(processor, write):
    path = write(
        row("what stands for an image?", "the <image> tag"),
        row("look: <image>", "yes: <image>", "and?", "text", image="red.png"),
        row("no placeholder", "fine", image="red.png"),
    )
    data = open_data(path, processor)
    assert [sample["input_ids"].count(processor.image_token_id) for sample in data.dataset] == [0, 4, 4]
    first, second, _ = texts(data, processor)
    assert "the < image > tag" in first and "yes: < image ><" in second
    assert second.startswith("<|im_start|>user\n<image><image><image><image>\nlook:<|im_end|>")


def test_several_images_stand_where_they_are_mentioned(processor, write):
    both = ["red.png", "blue.png"]
    path = write(
        row("<image>\n<image>\nSame?", "no", image=both),
        row("Is <image> like <image>?", "no", image=both),
        row("Same?", "no", image=both),
        row("First <image>", "yes", "then <image>", "no", image=both),
        row("only <image>", "no", image=both),
    )
    data = open_data(path, processor)
    image = "<image>" * 4 + "\n"
    asked = [text.partition("user\n")[2].partition("<|im_end|>")[0] for text in texts(data, processor)]
    same = f"{image}{image}Same?"
    assert asked == [same, f"Is {image} like {image}?", same, f"First {image}"]
    (entry,) = data.bad_rows
    assert (entry.row, entry.reason, entry.detail) == (4, "fewer <image> than images", "1 for 2")
    _, images = row_images(data, path.parent)([data.dataset[1]])
    assert [image.getpixel((0, 0)) for image in images] == [(255, 0, 0), (0, 0, 255)]


def test_long_rows_are_left_out_whole(processor, write):
    path = write(row("<image>\nA?", "long " * 30, image="red.png", id=7), row("B?", "short"))
    data = open_data(path, processor, max_length=80)
    (text,), (entry,) = texts(data, processor), data.bad_rows
    assert "short" in text and list(row_lengths(data.dataset)) == [data.dataset[0]["length"]]
    assert entry[:4] == (str(path), 0, "7", "longer than max_length 80") and entry.detail.endswith(" tokens")


def test_collator_pads_and_preprocesses_like_the_processor(processor, write):
    data = open_data(write(row("<image>\nA?", "one", image="red.png"), row("longer question?", "two")), processor)
    rows, folder = list(data.dataset), data.sources[0].image_folder
    pad = processor.tokenizer.pad_token_id
    collate = ImageTextCollator(processor.image_processor, pad, row_images(data, folder))
    batch = collate(rows)
    shorter, longer = sorted(rows, key=lambda r: r["length"])
    i, width, length = rows.index(shorter), longer["length"], shorter["length"]
    assert batch["input_ids"][i].tolist() == shorter["input_ids"] + [pad] * (width - length)
    assert batch["labels"][i].tolist() == shorter["labels"] + [IGNORE_INDEX] * (width - length)
    assert batch["attention_mask"][i].tolist() == [1] * length + [0] * (width - length)
    theirs = processor(images=[Pictures.open(folder / "red.png")], text=["<image>\n"], return_tensors="pt")
    assert torch.equal(batch["pixel_values"], theirs["pixel_values"])
    assert set(collate(rows[1:])) == {"input_ids", "labels", "attention_mask"}


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


def test_a_template_without_markers_is_refused(processor, write):
    template = "{% for m in messages %}{{ m['content'][0]['text'] }}{% endfor %}"
    how = LlavaTokens(processor.tokenizer, template, processor.image_token_id, 4, None)
    path = write(row("A?", "one"))
    with pytest.raises(UserError, match="the chat template marks no supervised tokens"):
        open_training_data(read_sources(str(path), None), how, path.parent / "cache")
    assert [file.name for file in (path.parent / "cache").iterdir() if file.is_file() and file.suffix != ".lock"] == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "must be a JSON list"),
        ("[", "is not JSON: Expecting value"),
        ('[{"a": 1}', "is not JSON: a comma or the end of the list is missing"),
        ('[{"a": 1} {"b": 2}]', "is not JSON: a comma or the end of the list is missing"),
        ('[{"a": nothing}]', "is not JSON: Expecting value"),
        ("[" * 100_000, "is not JSON"),
        ("[]", "has no rows"),
    ],
)
def test_broken_files_are_named(processor, tmp_path, content, message):
    (tmp_path / "broken.json").write_text(content)
    with one_line(rf"broken\.json {message}"):
        open_data(tmp_path / "broken.json", processor)


def test_json_lines_lose_only_the_broken_line(processor, tmp_path):
    lines = [json.dumps(row("A?", "one")), "{broken", "", json.dumps(row("B?", "two"))]
    (tmp_path / "data.jsonl").write_text("\n".join(lines))
    data = open_data(tmp_path / "data.jsonl", processor)
    assert len(data.dataset) == 2
    assert [(entry.row, entry.reason) for entry in data.bad_rows] == [(1, "the line is not JSON")]


def parquet(folder, rows, several=False):
    images = {"images": List(Image())} if several else {"image": Image()}
    Dataset.from_list(rows, features=features(**images)).to_parquet(folder / "rows.parquet")
    return folder / "rows.parquet"


@pytest.mark.parametrize("several", [False, True])
def test_images_inside_parquet_are_those_of_the_folder(processor, write, tmp_path, several):
    def cell(*names):
        cells = [{"bytes": (tmp_path / name).read_bytes(), "path": None} for name in names]
        return cells if several else cells[0]

    write()
    column = "images" if several else "image"
    rows = [
        row("<image>\nA?", "red", id="0", **{column: cell("red.png")}),
        row("B?", "no image", id="1", **{column: None}),
        row("<image>\nC?", "blue", id="2", **{column: cell("blue.png", *["red.png"] * several)}),
        row("<image>\nC?", "lost", id="3", **{column: [{"bytes": None, "path": None}] if several else None}),
        row("one-sided", id="4", **{column: None}),
    ]
    if several:
        rows[2]["conversations"][0]["value"] = "<image><image>"
    path = parquet(tmp_path, rows, several)
    data = open_data(path, processor)
    assert [entry.row for entry in data.bad_rows] == [3, 4]
    kept, images = row_images(data, tmp_path)(list(data.dataset)[:3])
    assert [len(r["images"]) for r in kept] == [1, 0, 1 + several]
    first = list(first_images(data.sources, str(tmp_path / "cache")))
    for opened in (images, first):
        assert [p.getpixel((0, 0)) for p in opened] == [(255, 0, 0), (0, 0, 255), (255, 0, 0)][: 2 + several]


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


def test_weights_of_a_mixture(processor, write, tmp_path):
    write(*[row(f"{i}?", "a") for i in range(10)], name="a.json")
    write(*[row(f"{i}?", "b") for i in range(8)], row("bad"), name="b.json")
    (tmp_path / "mix.yaml").write_text(
        f"- path: {tmp_path}/a.json\n  weight: 0.3\n- {{path: {tmp_path}/b.json, weight: 2.5}}\n"
    )
    first, again = (open_data(tmp_path / "mix.yaml", processor) for _ in range(2))
    seen = Counter((r["source"], r["row"]) for r in first.dataset)
    assert sum(count for (source, _), count in seen.items() if source == 0) == 3
    of_b = [count for (source, _), count in seen.items() if source == 1]
    assert sorted(of_b) == [2] * 4 + [3] * 4 and first.opened == 19 and len(first.bad_rows) == 1
    assert list(first.dataset["row"]) == list(again.dataset["row"])


def test_prepared_rows_are_used_again(processor, write, monkeypatch):
    path = write(row("A?", "one"), row("<image>", "two", image="late.png"))
    first = open_data(path, processor)
    with monkeypatch.context() as patch:
        patch.setattr("train.data.prepared.check_row", lambda *_: pytest.fail("read again"))
        cached = open_data(path, processor)
    assert list(cached.dataset) == list(first.dataset) and cached.bad_rows == first.bad_rows
    Pictures.new("RGB", (9, 9)).save(path.parent / "late.png")  # the missing image came: looked at again
    assert len(open_data(path, processor).dataset) == 2
    assert len(open_data(path, processor, max_length=20).dataset) == 0
    write(row("A?", "changed"))
    assert "changed" in texts(open_data(path, processor), processor)[0]


def test_several_processes_prepare_the_same_rows(processor, write, monkeypatch):
    path = write(*[row(f"{i}?", "a" * (i % 5), id=i) for i in range(1300)])  # every fifth answer is empty
    sources = read_sources(str(path), None)
    alone = open_training_data(sources, tokenization(processor), path.parent / "alone")
    monkeypatch.setattr("train.data.prepared._ROWS_A_PROCESS", 600)
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    shared = open_training_data(sources, tokenization(processor), path.parent / "shared")
    assert len(list((path.parent / "shared").glob("*_of_00002.arrow"))) == 2
    assert list(shared.dataset) == list(alone.dataset) and shared.bad_rows == alone.bad_rows
    assert [entry.row for entry in alone.bad_rows] == list(range(0, 1300, 5))
