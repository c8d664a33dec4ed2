import csv
import json
import re

import pytest

from eval.data.benchmarks import BENCHMARKS
from eval.report.tables import subtasks
from eval.report.tables import table4 as tables
from eval.report.tables.differences import draw_differences
from eval.scoring.items import Items
from eval.scoring.scores import Arm, score_rows
from modeling_aligned_llava.errors import UserError


def result(right, n=40):
    items = Items()
    for index in range(n):
        items.add(str(index), index < right, f"group {index % 2}", subtask=("lower & half", "upper")[index // 20])
    score = 100 * right / n
    return {"status": "ok", "reason": None, "score": score, "rows": n, "unparseable": 0.1, "items": vars(items)}


def nine(right, **changes):
    return {benchmark.key: result(right) for benchmark in BENCHMARKS} | changes


@pytest.fixture
def rows():
    arms = [
        Arm("baseline", "toy", "baseline", 42),
        Arm("norm", "toy", "norm", 42),
        Arm("norm-gwc", "toy", "norm-gwc", 42),
        Arm("lm", "toy", "lm", 42),
    ]
    failed = {"status": "failed", "reason": "ValueError: a | b_c & 100%"}
    absent = {"status": "not run", "reason": "a language model sees no images"}
    results = {
        "baseline": nine(20),
        "norm": nine(36),
        "norm-gwc": nine(20, ocrbench=failed),
        "lm": {b.key: result(22) if b.harness == "lm-eval" else absent for b in BENCHMARKS},
    }
    return score_rows(arms, results, "baseline")


def cell(rows, method, benchmark, source="measured"):
    return next(r for r in rows if (r["source"], r["method"], r["benchmark"]) == (source, method, benchmark))


def test_scores_json_has_the_form_of_the_design(rows):
    fields = (
        "backbone method seed benchmark score n ci95 delta delta_ci95 p_value p_holm unparseable status reason source"
    )
    assert all(set(row) - {"subtasks"} == set(fields.split()) for row in rows)
    json.dumps(rows, allow_nan=False)
    assert len(rows) == 4 * 10 + 6 * 10


def test_the_baseline_has_no_delta_and_the_others_do(rows):
    assert cell(rows, "baseline", "pope")["delta"] is None
    norm = cell(rows, "norm", "pope")
    assert norm["delta"] == pytest.approx(40)
    assert norm["p_value"] == pytest.approx(2 / 2**16)
    assert norm["p_holm"] == pytest.approx(min(1, norm["p_value"] * 9), rel=1)
    assert norm["p_holm"] > norm["p_value"]
    assert norm["n"] == 40 and norm["unparseable"] == 0.1


def test_the_average_needs_all_nine(rows):
    average = cell(rows, "norm", "avg")
    assert (average["score"], average["n"]) == (pytest.approx(90), 9)
    assert average["p_holm"] is None and average["delta"] == pytest.approx(40)
    broken = cell(rows, "norm-gwc", "avg")
    assert (broken["status"], broken["score"]) == ("failed", None) and "ocrbench" in broken["reason"]
    assert cell(rows, "lm", "avg")["status"] == "not run"


def test_seeds_are_compared_with_the_baseline_of_the_same_seed():
    arms = [Arm(f"{m}-{s}", "toy", m, s) for m in ("baseline", "norm") for s in (1, 2)]
    results = {"baseline-1": nine(10), "baseline-2": nine(20), "norm-1": nine(20), "norm-2": nine(20)}
    rows = score_rows(arms, results, "baseline")
    deltas = {
        r["seed"]: r["delta"]
        for r in rows
        if r["method"] == "norm" and r["benchmark"] == "pope" and r["delta"] is not None
    }
    assert deltas == {1: pytest.approx(25), 2: pytest.approx(0)}


def test_the_papers_rows_are_its_own(rows):
    assert cell(rows, "norm-gwc", "avg", "paper")["score"] in (61.27, 69.41)
    paper = [r for r in rows if r["source"] == "paper"]
    for start in range(0, len(paper), 10):
        line = [r["score"] for r in paper[start : start + 10]]
        assert sum(line[:9]) / 9 == pytest.approx(line[9], abs=0.011)  # as printed, to the rounding


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
    tables.main()
    names = [f"tables/{name}.{suffix}" for name in ("table4", "subtasks") for suffix in ("md", "tex", "csv", "json")]
    names.append("figures/table4.svg")
    before = {name: (tmp_path / name).read_bytes() for name in names}
    times = {name: (tmp_path / name).stat().st_mtime_ns for name in names}
    tables.main()
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
    frame = subtasks.breakdown(tables.arms(rows))
    line = frame[(frame["benchmark"] == "OCRBench") & (frame["part"] == "upper")].iloc[0]
    assert line["toy baseline"] == "0.0" and line["toy norm-gwc"] == "not run"
    assert len(frame) == 2 * len(BENCHMARKS)
    assert r"lower \& half" in subtasks.WRITERS["tex"](frame)
    assert len(list(csv.DictReader(subtasks.WRITERS["csv"](frame).splitlines()))) == len(frame)
    assert json.loads(subtasks.WRITERS["json"](frame))[0]["n"] == 20


def test_further_benchmarks_stand_behind_the_average():
    arms = [Arm("baseline", "toy", "baseline", 42), Arm("norm", "toy", "norm", 42)]
    results = {"baseline": nine(20, mmlu_5shot=result(1)), "norm": nine(36, mmlu_5shot=result(39))}
    rows, without = (
        score_rows(arms, results, "baseline"),
        score_rows(arms, {"baseline": nine(20), "norm": nine(36)}, "baseline"),
    )
    further = cell(rows, "norm", "mmlu_5shot")
    assert further["p_value"] < 1e-6 and further["p_holm"] is None and tables.is_significant(further)
    assert [row for row in rows if row["benchmark"] != "mmlu_5shot"] == without
    assert list(tables.columns(rows))[-2:] == ["avg", "mmlu_5shot"] and list(tables.columns(without))[-1] == "avg"
    table = json.loads(tables.as_json(rows))
    assert table[1]["cells"]["MMLU 5-shot"]["score"] == 97.5 and table[2]["cells"]["MMLU 5-shot"] == "not run"


def test_a_trial_does_not_get_into_a_table(tmp_path, monkeypatch):
    rows = score_rows([Arm("baseline", "toy", "baseline", 42)], {"baseline": nine(20)}, "baseline", limit=40)
    assert {row.get("limit") for row in rows} == {40, None}
    (tmp_path / "scores.json").write_text(json.dumps(rows))
    monkeypatch.setattr("sys.argv", ["tables", str(tmp_path)])
    with pytest.raises(UserError, match=r"a trial with --limit 40, no scores"):
        tables.main()
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
        tables.main()
