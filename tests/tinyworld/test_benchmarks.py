import json
from collections import Counter, defaultdict

import pytest
from datasets import load_dataset

from tinyworld.benchmarks import BENCHMARKS, ROTATION, mmbench, mmlu, mmstar, ocrbench, pope, scienceqa
from tinyworld.build import build


def rows_of(benchmark):
    (splits,) = benchmark.configs.values()
    return splits[max(splits, key=lambda split: len(splits[split]))]


def test_mmbench_asks_a_hundred_questions_in_all_their_rotations():
    by_question = defaultdict(list)
    for row in rows_of(mmbench()):
        by_question[row["index"] % ROTATION].append(row)
    assert len(by_question) == 100
    for rotations in by_question.values():
        options = [sum(row[letter] != "nan" for letter in "ABCD") for row in rotations]
        assert len(set(options)) == 1 and len(rotations) == options[0]
        # each rotation puts the right option under another letter
        assert len({row["answer"] for row in rotations}) == len(rotations)
        assert len({row[row["answer"]] for row in rotations}) == 1


def test_pope_asks_eighteen_balanced_questions_per_image():
    counts = Counter((row["image_source"], row["answer"]) for row in rows_of(pope()))
    assert set(counts.values()) == {9} and len({image for image, _ in counts}) == 20 and len(counts) == 40


@pytest.mark.parametrize(
    ("benchmark", "group", "groups", "rows"),
    [
        (mmstar, lambda row: row["l2_category"], 18, 10),
        (ocrbench, lambda row: row["question_type"], 10, 100),
        (scienceqa, lambda row: row["image"] is None, 2, 120),
    ],
)
def test_every_group_of_a_benchmark_has_as_many_rows(benchmark, group, groups, rows):
    counts = Counter(map(group, rows_of(benchmark())))
    assert len(counts) == groups and set(counts.values()) == {rows}


def test_mmlu_has_four_test_and_five_dev_questions_per_subject():
    configs = mmlu().configs
    assert len(configs) == 57
    assert all((len(splits["test"]), len(splits["dev"])) == (4, 5) for splits in configs.values())


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    out = tmp_path_factory.mktemp("world") / "data"
    build(out, images=20)
    return out


def test_folders_open_under_their_official_names(world, tmp_path, monkeypatch):
    monkeypatch.chdir(world / "mirrors")
    pope_rows = load_dataset("lmms-lab-encoder/POPE", split="test", cache_dir=str(tmp_path))
    assert len(pope_rows) == 360 and pope_rows[0]["image"].size == (96, 96)
    subject = load_dataset("cais/mmlu", "virology", split="dev", cache_dir=str(tmp_path))
    assert len(subject) == 5 and subject.features["answer"].names == list("ABCD")


def test_boxes_name_rows_and_lie_on_the_canvas(world):
    boxes = json.loads((world / "mirrors" / "boxes.json").read_text(encoding="utf-8"))
    assert len(boxes) == len(BENCHMARKS) - 2  # all but the two text benchmarks
    assert len(boxes["lmms-lab-encoder/POPE"]) == 360
    for rows in boxes.values():
        for places in rows.values():
            assert all(0 <= left < right <= 96 and 0 <= top < bottom <= 96 for left, top, right, bottom in places)


def test_conversations_are_in_llavas_format(world):
    stage1 = json.loads((world / "stage1.json").read_text(encoding="utf-8"))
    stage2 = json.loads((world / "stage2.json").read_text(encoding="utf-8"))
    assert len(stage1) == 20 and len(stage2) >= 20
    assert all((world / "images" / row["image"]).is_file() for row in stage1)
    for row in stage1 + stage2:
        sides = [turn["from"] for turn in row["conversations"]]
        assert sides == ["human", "gpt"] * (len(sides) // 2)
        shown = sum("<image>" in turn["value"] for turn in row["conversations"])
        assert shown == ("image" in row)
