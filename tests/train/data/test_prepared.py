"""From LLaVA's rows to batches: supervised tokens, images, sources, and rejected rows."""

import json
from collections import Counter

import pytest
import torch
from datasets import Dataset, Image, List
from PIL import Image as Pictures

from modeling_aligned_llava.errors import UserError
from tests.one_line import one_line
from tests.train.data.rows import features, open_data, row, row_images, texts, tokenization
from train.data.images import first_images
from train.data.llava_tokens import ImageTextCollator, LlavaTokens
from train.data.prepared import open_training_data, row_lengths
from train.data.row_tokens import IGNORE_INDEX
from train.data.sources import read_sources


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
