"""The report as a whole, on complete runs and on runs with parts missing."""

import json
import re
from html.parser import HTMLParser

from eval.report import __main__, measurements, page
from eval.report.finished_run import FinishedRun
from modeling_aligned_llava.loading.files import read_json, write_json
from tests.eval.report.stand_in import write_run


ABSENT = {"error": "its checkpoint is gone"}
HOSTILE = '"><img src=x onerror=document.title=1337><script>document.title=1337</script>'


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
    return page.report(run, measured or {model.name: ABSENT for model in run.models})


def test_a_whole_run_is_measured_once_and_the_page_is_the_same_to_the_byte(
    tmp_path, tiny_llava, call, monkeypatch, capsys
):
    folder = write_run(tmp_path / "run", tiny_llava)
    call(__main__.main, folder)
    first = (folder / "report.html").read_bytes()
    monkeypatch.setattr(measurements, "load", None)  # measuring again would fail
    (folder / "report.html").unlink()
    call(__main__.main, folder)
    assert (folder / "report.html").read_bytes() == first
    text_of = Text(first.decode())
    assert "inside the boxes" in text_of.text and "Gradient norm before clipping, stage 2" in text_of.text
    assert "error" not in capsys.readouterr().err


def test_the_page_loads_nothing_shows_no_path_and_takes_tags_for_words(tmp_path, tiny_llava):
    folder = write_run(
        tmp_path / HOSTILE.replace("/", ""),
        tiny_llava,
        norm=f"OSError: {tmp_path}/run/data.parquet is damaged {HOSTILE}",
    )
    for name in ("scores.json", "run.json"):
        text = (folder / name).read_text().replace('"toy"', json.dumps(f"toy {HOSTILE}"))
        (folder / name).write_text(text.replace('"baseline"', json.dumps(f"base {HOSTILE}")))
    html = made(folder)
    assert HOSTILE in Text(html).text and html.count("<script") == 1
    for tag, attributes in Text(html).elements:
        assert tag not in ("link", "iframe", "object", "base")
        for name in ("src", "href", "xlink:href", "action", "srcset"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    assert not re.search(r"url\((?!#)|@import", html)
    assert str(tmp_path) not in html and "/home/" not in html
    assert "failed: OSError: …/data.parquet is damaged" in html


def test_ids_are_unique_and_every_reference_finds_one(tmp_path, tiny_llava):
    folder = write_run(tmp_path / "run", tiny_llava)
    elements = Text(made(folder, measurements.measure(FinishedRun.read(folder)))).elements
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in elements:
        named = [*(attributes.get("aria-labelledby") or "").split(), attributes.get("for")]
        named += [(attributes.get(name) or "").removeprefix("#") for name in ("href", "xlink:href")]
        assert all(name in ids for name in named if name), attributes


def table(html, caption):
    """The texts of a table's rows, found by the id of its caption."""
    body = html.split(f'aria-labelledby="{caption}-caption"')[1].split("</table>")[0]
    return [
        [Text(cell).text for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)] for row in body.split("<tr>")
    ]


def test_a_failed_baseline_leaves_nothing_to_compare_with(tmp_path):
    folder = write_run(tmp_path / "run", None, baseline="ValueError: no answer")
    rows = read_json(folder / "scores.json")
    rows = [row for row in rows if row["benchmark"] != "mmlu" or row["source"] == "paper"]
    write_json(folder / "scores.json", rows)
    html = made(folder)
    assert FinishedRun.read(folder).baselines == {}
    assert 'class="difference' not in html and "norm against" not in html and "ValueError: no answer" in html


def test_a_model_without_any_score(tmp_path):
    folder = write_run(tmp_path / "run", None)

    kept = {"backbone", "method", "seed", "benchmark", "source"}
    rows = read_json(folder / "scores.json")
    for row in rows:
        if row["method"] == "norm" and row["source"] == "measured":
            row |= dict.fromkeys(row.keys() - kept) | {"status": "not run", "reason": "its training failed"}
    write_json(folder / "scores.json", rows)
    html = made(folder)
    (norm,) = (row for row in table(html, "measured") if row and row[0] == "norm")
    assert set(norm[1:]) == {"not run"} and "(its training failed)" in html


def test_scores_alone_make_a_page(tmp_path, capsys):
    complete = write_run(tmp_path / "complete", None)
    (tmp_path / "bare").mkdir()
    (complete / "scores.json").rename(tmp_path / "bare" / "scores.json")
    run = FinishedRun.read(tmp_path / "bare")
    measured = measurements.measure(run)
    html = made(run.folder, measured)
    errors = capsys.readouterr().err
    for name in ("baseline", "norm"):
        assert measured[name]["error"] in html and f"{name}: no profile in the report" in errors
    notes = re.findall(r'<section aria-labelledby="(\w+)">(?:(?!</section>).)*class="note"', html, re.DOTALL)
    assert {"limits", "training", "settings"} <= set(notes)
