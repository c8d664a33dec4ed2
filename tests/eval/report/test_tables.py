import csv
import json
import re

import pytest

from eval.data.benchmarks import BENCHMARKS
from eval.report.tables import __main__ as command
from eval.report.tables import subtasks
from eval.report.tables import table4 as tables
from eval.report.tables.differences import draw_differences
from eval.scoring.scores import EvaluatedModel, score_rows
from modeling_aligned_llava.errors import UserError
from tests.eval.score_rows import cell, nine


def test_markdown_says_what_is_missing(rows):
    lines = tables.markdown(rows).splitlines()
    table = {
        line.split(" | ")[0].removeprefix("| "): [c.strip(" |") for c in re.split(r"(?<!\\)\|", line)[2:-1]]
        for line in lines[2:12]
    }
    assert all(len(cells) == 10 for cells in table.values())
    assert table["toy norm-gwc"][4] == r"failed: ValueError: a \| b_c & 100%"
    assert table["toy lm"][:7] == ["not run"] * 7
    assert table["toy baseline"][2].startswith("50.00<br>[") and "n=40" in table["toy baseline"][2]
    assert r"+40.00\* [" in table["toy norm"][2]
    assert table["Qwen2.5-7B norm (paper)"][0] == "75.60"


def test_latex_is_escaped_and_csv_has_every_cell(rows):
    latex = tables.latex(rows)
    assert r"failed: ValueError: a | b\_c \& 100\%" in latex
    assert latex.count(r"\midrule") == 2 and r"\bottomrule" in latex
    assert not re.search(r"(?<!\\)[%_]", latex.replace(r"\begin{table}", ""))
    lines = list(csv.DictReader(tables.comma_separated(rows).splitlines()))
    assert len(lines) == len(rows)
    assert [line["score"] for line in lines if line["method"] == "lm"][:2] == ["not run", "not run"]


def test_files_are_a_pure_function_of_scores(rows, tmp_path, monkeypatch, capsys):
    (tmp_path / "scores.json").write_text(json.dumps(rows))
    monkeypatch.setattr("sys.argv", ["tables", str(tmp_path)])
    command.main()
    names = [f"tables/{name}.{suffix}" for name in ("table4", "subtasks") for suffix in ("md", "tex", "csv", "json")]
    names.append("figures/table4.svg")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in names}
    command.main()
    assert before == {name: (tmp_path / name).read_bytes() for name in names}
    assert times == {name: (tmp_path / name).stat().st_mtime_ns for name in names}
    assert "failed" in capsys.readouterr().out


def test_parts_of_a_benchmark_add_up_to_it(rows):
    assert cell(rows, "norm", "pope")["subtasks"] == {
        "lower & half": {"score": 100.0, "n": 20},
        "upper": {"score": 80.0, "n": 20},
    }
    assert "subtasks" not in cell(rows, "baseline", "avg") and "subtasks" not in cell(
        rows, "baseline", "pope", "paper"
    )
    frame = subtasks.breakdown(tables.table_lines(rows))
    line = frame[(frame["benchmark"] == "OCRBench") & (frame["part"] == "upper")].iloc[0]
    assert line["toy baseline"] == "0.0" and line["toy norm-gwc"] == "not run"
    assert len(frame) == 2 * len(BENCHMARKS)
    assert r"lower \& half" in subtasks.WRITERS["tex"](frame)
    assert len(list(csv.DictReader(subtasks.WRITERS["csv"](frame).splitlines()))) == len(frame)
    assert json.loads(subtasks.WRITERS["json"](frame))[0]["n"] == 20


def test_a_trial_does_not_get_into_a_table(tmp_path, monkeypatch):
    rows = score_rows(
        [EvaluatedModel("baseline", "toy", "baseline", 42)], {"baseline": nine(20)}, "baseline", limit=40
    )
    assert {row.get("limit") for row in rows} == {40, None}
    (tmp_path / "scores.json").write_text(json.dumps(rows))
    monkeypatch.setattr("sys.argv", ["tables", str(tmp_path)])
    with pytest.raises(UserError, match=r"a trial with --limit 40"):
        command.main()
    assert not (tmp_path / "tables").exists()


def test_a_figure_without_differences_is_drawn(rows, tmp_path):
    draw_differences([row | {"delta": None} for row in rows], tmp_path / "empty.svg")
    assert (tmp_path / "empty.svg").read_text().startswith("<?xml")


def test_an_interval_without_width_is_drawn_though_its_last_bit_differs(rows, tmp_path):
    narrow = [row | {"delta": 0.3, "delta_ci95": [0.1 + 0.2, 0.1 + 0.2]} for row in rows if row["delta"] is not None]
    draw_differences(narrow, tmp_path / "narrow.svg")
    assert (tmp_path / "narrow.svg").exists()


def test_tables_without_scores_name_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tables", str(tmp_path)])
    with pytest.raises(UserError, match=r"scores\.json"):
        command.main()
