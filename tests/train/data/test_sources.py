"""What `data_path` may name, before a row is read."""

import pytest
from datasets import Dataset, load_dataset

from tests.one_line import one_line
from train.data import sources
from train.data.sources import raw_table, read_sources


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


def test_a_configuration_of_a_hub_dataset_is_read(tmp_path, monkeypatch):
    """The Hub's reader sees a folder with the files and the card of a dataset."""
    card = "---\nconfigs:\n"
    for name in ("ai2d(gpt4v)", "chart2text(cauldron)"):
        for split in ("train", "test"):
            (tmp_path / "hub/org/name" / name).mkdir(parents=True, exist_ok=True)
            Dataset.from_list([{"id": f"{name} {split}"}]).to_parquet(
                tmp_path / "hub/org/name" / name / f"{split}.parquet"
            )
        files = "".join(f"  - split: {split}\n    path: {name}/{split}.parquet\n" for split in ("train", "test"))
        card += f"- config_name: {name}\n  data_files:\n{files}"
    (tmp_path / "hub/org/name/README.md").write_text(f"{card}---\n")
    monkeypatch.setattr(sources, "load_dataset", lambda path, *a, **k: load_dataset(f"{tmp_path}/hub/{path}", *a, **k))

    def ids(entry):
        (tmp_path / "mix.yaml").write_text(f"- {{path: org/name, {entry}}}")
        (source,) = read_sources(str(tmp_path / "mix.yaml"), None)
        return raw_table(source, str(tmp_path / "cache"))["id"]

    assert list(ids("config: ai2d(gpt4v)")) == ["ai2d(gpt4v) train"]
    assert list(ids("config: chart2text(cauldron), split: test")) == ["chart2text(cauldron) test"]
    with one_line(r"org/name cannot be read: choose one with `config` in a .yaml; Config name.*ai2d\(gpt4v\)"):
        ids("weight: 1")


@pytest.mark.parametrize("choice", ["config: a", "split: test"])
def test_a_choice_that_is_not_read_is_refused(choice, tmp_path):
    (tmp_path / "rows.json").touch()
    (tmp_path / "mix.yaml").write_text(f"- {{path: {tmp_path}/rows.json, {choice}}}")
    with one_line("config and split are those of a Hub dataset; .*rows.json is read whole"):
        read_sources(str(tmp_path / "mix.yaml"), None)
