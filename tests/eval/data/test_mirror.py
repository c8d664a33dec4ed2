"""A data root: rows and files of each benchmark, and the images that the diagnostics draw from it."""

import shutil
from collections import Counter
from dataclasses import replace

import pytest
from datasets import load_dataset

from eval.data import mirror
from eval.data.benchmarks import BENCHMARKS, BY_KEY
from eval.data.image_sample import in_benchmarks
from modeling_aligned_llava.errors import UserError
from tests.benchmark_stand_in import POPE_PARTS, image_of, mmlu, pope, scienceqa, write_dataset


@pytest.fixture
def root(tmp_path):
    write_dataset(tmp_path / "lmms-lab-encoder/POPE", {"default": {"test": pope(6)}})
    parts = {"ScienceQA-FULL": {"test": scienceqa(8)}, "ScienceQA-IMG": {"test": scienceqa(2)}}
    write_dataset(tmp_path / "lmms-lab-encoder/ScienceQA", parts)
    return tmp_path


def test_a_limit_holds_for_every_subject(root):
    write_dataset(root / "cais/mmlu", mmlu(3))  # "all" has the rows of all of them once more
    assert mirror.count_rows(root, BY_KEY["mmlu"]) == 3 * 57
    assert mirror.count_rows(root, BY_KEY["mmlu"], limit=2) == 2 * 57
    assert [mirror.count_rows(root, BY_KEY["pope"], limit=limit) for limit in (4, 9)] == [4, 6]


def test_parts_are_named_row_by_row(root):
    assert mirror.subtask_names(root, BY_KEY["pope"]) == [part for part in POPE_PARTS for _ in range(2)]
    assert mirror.subtask_names(root, replace(BY_KEY["pope"], subtasks="absent")) == []


def test_rows_of_the_scored_split_are_counted_also_without_a_card(root):
    assert mirror.count_rows(root, BY_KEY["scienceqa"]) == 8
    (root / "lmms-lab-encoder/POPE/README.md").unlink()
    assert mirror.count_rows(root, BY_KEY["pope"]) == 6


def test_a_missing_split_or_broken_file_is_named(root):
    write_dataset(root / "Lin-Chen/MMStar", {"val": {"train": pope(2)}})
    with pytest.raises(UserError, match=r"mmstar: .* no parquet rows of split val"):
        mirror.count_rows(root, BY_KEY["mmstar"])
    path = root / "lmms-lab-encoder/POPE/data/test-00000-of-00001.parquet"
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(UserError, match=r"pope: .*test-00000-of-00001\.parquet is not readable"):
        mirror.count_rows(root, BY_KEY["pope"])


def test_fingerprint_follows_content_not_place(root, tmp_path):
    before = mirror.fingerprint(root, BY_KEY["pope"])
    copy = tmp_path / "copy"
    shutil.copytree(root / "lmms-lab-encoder", copy / "lmms-lab-encoder")
    (copy / "lmms-lab-encoder/POPE/.cache").mkdir()
    (copy / "lmms-lab-encoder/POPE/.cache/lock").write_text("download")
    assert mirror.fingerprint(copy, BY_KEY["pope"]) == before
    write_dataset(copy / "lmms-lab-encoder/POPE", {"default": {"test": pope(5)}})
    assert mirror.fingerprint(copy, BY_KEY["pope"]) != before


@pytest.mark.parametrize("key", ["pope", "seedbench_2_plus"])
def test_rows_of_several_files_are_named_as_the_harness_numbers_them(mirror_root, key):
    """`doc_id` counts the rows that `datasets` loads."""
    benchmark, folder = BY_KEY[key], mirror_root / BY_KEY[key].folder
    assert len(mirror.split_files(mirror_root, benchmark)) > 1
    column = load_dataset(str(folder), split=benchmark.split)[benchmark.subtasks]
    assert mirror.subtask_names(mirror_root, benchmark) == list(column) and len(set(column)) == 3


def test_of_all_files_on_the_hub_those_of_the_scored_split_count(mirror_root):
    counts = {b.key: mirror.count_rows(mirror_root, b) for b in BENCHMARKS}
    assert counts == {b.key: 10 for b in BENCHMARKS} | {"ocrbench": 1000, "mmlu": 57 * 4}
    names = {b.key: [file.name for file in mirror.split_files(mirror_root, b)] for b in BENCHMARKS}
    assert names["mmstar"] == ["mmstar.parquet"] and names["mmbench"] == ["dev-00000-of-00001.parquet"]
    assert names["pope"] == [f"test-0000{shard}-of-00003.parquet" for shard in range(3)]
    assert set(names["mmlu"]) == {"test-00000-of-00001.parquet"} and len(names["mmlu"]) == 57
    assert [mirror.problem(mirror_root, b, hub_rows=False) for b in BENCHMARKS] == [None] * len(BENCHMARKS)


def test_the_sample_of_the_benchmarks_is_deterministic(mirror_root):
    first, again = (in_benchmarks(mirror_root, 4) for _ in range(2))
    assert [image.id for image in first] == [image.id for image in again] and len(first) == 4
    assert all(image.open().mode == "RGB" for image in first)
    whole = in_benchmarks(mirror_root, 10**6)
    assert Counter(image.id.partition("/")[0] for image in whole) == {"mmbench": 10, "pope": 10, "mmstar": 10}
    assert len({image.id for image in whole}) == 30
    for image in whole:
        if image.id.startswith("pope/"):  # whose rows lie in three files
            number = int(image.id.removeprefix("pope/"))
            assert image.open().getpixel((0, 0)) == image_of(number // 2).getpixel((0, 0))
    with pytest.raises(UserError, match="there is no folder"):
        in_benchmarks(mirror_root / "absent", 4)
