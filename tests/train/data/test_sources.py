"""What `data_path` may name, before a row is read."""

import pytest

from tests.one_line import one_line
from train.data.sources import read_sources


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        *((f"a/none{end}", None, "there is no file .*none") for end in ("", ".json", ".parquet", ".yaml")),
        ("folder/other.txt", "", r"there is no \.parquet file"),
        *(("mix.yaml", text, r"mix\.yaml") for text in ("3", "- 3", "[]")),
        *(("mix.yaml", f"- {{path: x.json, {text}}}", r"mix\.yaml") for text in ("wieght: 2", "weight: 0")),
    ],
)
def test_missing_data_and_malformed_mixtures_are_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    with one_line(message):
        read_sources(str(path.parent if path.suffix == ".txt" else path), None)


def test_a_folder_with_rows_of_several_splits_is_refused(tmp_path):
    for name in ("train-00000-of-00001", "test-00000-of-00001", "latest"):
        (tmp_path / f"{name}.parquet").touch()
    with one_line(r"has other splits \(test-00000-of-00001.parquet\): list the files to train on in a .yaml"):
        read_sources(str(tmp_path), None)
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    assert read_sources(str(tmp_path), None)
