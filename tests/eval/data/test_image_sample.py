"""Damaged rows of a benchmark are named by file and row."""

import pytest
from datasets import Dataset

from eval.data.benchmarks import BY_KEY
from eval.data.image_sample import in_benchmarks
from modeling_aligned_llava.errors import UserError
from tests.benchmark_stand_in import pope, write_dataset


@pytest.fixture
def root(tmp_path):
    """`root(column, value)` -> a data root whose POPE has this value in row 2."""

    def make(column, value):
        rows, features = pope(4)
        rows[2][column] = value
        folder = BY_KEY["pope"].folder
        write_dataset(tmp_path / folder, {"Full": {BY_KEY["pope"].split: (rows, features)}})
        return tmp_path

    return make


def test_a_row_without_a_question_or_an_image_is_named(root):
    with pytest.raises(UserError, match=r"parquet, row 2 has no question"):
        in_benchmarks(root("question", None), 4, keys=("pope",))
    images = in_benchmarks(root("image", None), 4, keys=("pope",))
    (broken,) = (image for image in images if image.id == "pope/2")
    with pytest.raises(UserError, match=r"parquet, row 2 has no image"):
        broken.open()


def test_a_missing_column_is_named(root):
    folder = root("answer", "yes") / BY_KEY["pope"].folder
    (file,) = folder.rglob("*.parquet")
    Dataset.from_parquet(str(file)).remove_columns("question").to_parquet(file)
    with pytest.raises(UserError, match=r"parquet has no column question"):
        in_benchmarks(folder.parent.parent, 4, keys=("pope",))
