"""The report as a whole: it is right, and says so, whatever of the run is there."""

import json
import re
from html.parser import HTMLParser

import pytest

from eval.report.finished_run import FinishedRun
from eval.report.page import __main__ as page
from eval.report.page import measurements as looks
from modeling_aligned_llava.errors import UserError
from tests.eval.report.stand_in import QUESTIONS, write_run


ABSENT = {"error": "its checkpoint is gone"}


class Text(HTMLParser):
    """The words of a page, and the attributes of its elements."""

    def __init__(self, html: str):
        super().__init__()
        self.words: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.inside: str | None = None
        self.feed(html)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.inside = tag

    def handle_data(self, data):
        if self.inside not in ("script", "style"):
            self.words.append(data)


def made(folder, measured=None):
    run = FinishedRun.read(folder)
    return page.report(run, measured or {arm.name: ABSENT for arm in run.arms})


def test_a_whole_run_is_measured_once_and_the_page_is_the_same_to_the_byte(tmp_path, tiny_llava, monkeypatch, capsys):
    folder = write_run(tmp_path / "run", tiny_llava)
    monkeypatch.setattr("sys.argv", ["page", str(folder)])
    page.main()
    first = (folder / "report.html").read_bytes()
    monkeypatch.setattr(looks, "load", None)  # whoever measures again fails
    (folder / "report.html").unlink()
    page.main()
    assert (folder / "report.html").read_bytes() == first
    found = Text(first.decode())
    overlays = [attributes for tag, attributes in found.elements if attributes.get("class") == "shade"]
    assert len(overlays) == 6 * 2 * (1 + 2)  # pictures, arms, the mean and two layers
    assert sum(tag == "rect" and "x" in attributes for tag, attributes in found.elements) >= 6 * 2
    assert "inside the boxes asked about" in found.text and "Gradient norm by part, stage 2, norm" in found.text
    assert "error" not in capsys.readouterr().err


def test_nothing_outside_is_asked_for_and_no_path_of_the_machine_is_told(tmp_path, tiny_llava):
    folder = write_run(tmp_path / "run", tiny_llava, norm=f"OSError: {tmp_path}/run/data.parquet is damaged")
    html = made(folder)
    for tag, attributes in Text(html).elements:
        assert tag not in ("link", "iframe", "object", "base")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"url\((?!#)|@import", html)
    assert str(tmp_path) not in html and "/home/" not in html
    assert "failed: OSError: …/data.parquet is damaged" in html


def test_text_from_data_is_text(tmp_path):
    html = made(write_run(tmp_path / "run", None, norm="ValueError: <b>bold</b>"))
    assert "<script>alert" not in html and "yes &lt;script&gt;alert(&#39;baseline&#39;)" in html
    assert "<b>bold" not in html and "&lt;b&gt;bold" in html


def test_ids_are_unique_and_every_reference_finds_one(tmp_path, tiny_llava):
    folder = write_run(tmp_path / "run", tiny_llava)
    found = Text(made(folder, looks.measure(FinishedRun.read(folder)))).elements
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in found:
        named = [*(attributes.get("aria-labelledby") or "").split(), attributes.get("for")]
        named += [(attributes.get(name) or "").removeprefix("#") for name in ("href", "xlink:href")]
        assert all(name in ids for name in named if name), attributes


def test_a_failed_task_is_a_failed_cell_and_its_arm_keeps_the_rest(tmp_path):
    text = Text(made(write_run(tmp_path / "run", None, norm="ValueError: no answer"))).text
    assert "norm: POPE failed (ValueError: no answer)." in text
    assert "norm: there is no mean of the nine" in text
    assert "norm against baseline Difference not distinguishable from zero: MMLU" in text


def test_a_failed_baseline_leaves_nothing_to_compare_with(tmp_path):
    folder = write_run(tmp_path / "run", None, baseline="ValueError: no answer")
    rows = [row for row in json.loads((folder / "scores.json").read_text()) if row["benchmark"] != "mmlu"]
    (folder / "scores.json").write_text(json.dumps(rows))
    text = Text(made(folder)).text
    assert "baseline and norm were evaluated on 1 benchmark with 12 questions in all, but no score" in text
    assert "baseline: POPE failed" in text and "arms disagree on" not in text


def test_one_arm_alone(tmp_path):
    text = Text(made(write_run(tmp_path / "run", None, arms=("baseline",)))).text
    assert "One arm, baseline, was evaluated on 2 benchmarks with 24 questions in all. There is nothing" in text
    assert "One training of each arm" not in text


def test_an_arm_without_any_score(tmp_path):
    folder = write_run(tmp_path / "run", None)
    rows = json.loads((folder / "scores.json").read_text())
    for row in rows:
        if row["method"] == "norm" and row["source"] == "measured":
            row |= dict.fromkeys(row.keys() - {"backbone", "method", "seed", "benchmark", "source"})
            row |= {"status": "not run", "reason": "its training failed"}
    (folder / "scores.json").write_text(json.dumps(rows))
    text = Text(made(folder)).text
    assert "norm: not run on MMBench" in text and "(its training failed)." in text


def test_scores_alone_make_a_page_that_says_what_is_gone(tmp_path, capsys):
    complete = write_run(tmp_path / "complete", None)
    (tmp_path / "bare").mkdir()
    (complete / "scores.json").rename(tmp_path / "bare" / "scores.json")
    run = FinishedRun.read(tmp_path / "bare")
    text = Text(made(run.folder, looks.measure(run))).text
    assert "norm was not measured: run.json does not tell which weights were evaluated." in text
    for words in (
        "The attention of no arm was measured",
        "No training logs",
        "No answers are left",
        "run.json is gone",
    ):
        assert words in text
    assert "run.json does not tell" in capsys.readouterr().err


def test_harness_files_without_data_show_answers_without_pictures(tmp_path):
    folder = write_run(tmp_path / "run", None)
    (folder / "data").rename(tmp_path / "data")
    text = Text(made(folder)).text
    assert "POPE: the pictures are not shown, as the data root is gone." in text
    assert f"POPE: arms disagree on 3 of {QUESTIONS} questions." in text


def test_a_run_without_scores_is_one_clear_line(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["page", str(tmp_path)])
    with pytest.raises(UserError, match=r"scores\.json; evaluate the run first"):
        page.main()
