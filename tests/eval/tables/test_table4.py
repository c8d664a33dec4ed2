import csv
import json
import re

import pytest
from rich.console import Console

from eval.data.benchmarks import BENCHMARKS
from eval.report.finished_run import FinishedRun
from eval.score.scores import Model, score_rows
from eval.tables import table4
from eval.tables.table4 import Table4, comma_separated, draw_differences, latex, markdown, show, write_tables
from modeling_aligned_llava.errors import UserError
from tests.eval.score_rows import cell, nine, three_seeds


def test_markdown_says_what_is_missing(rows):
    lines = markdown(Table4.of(rows)).splitlines()
    table = {
        line.split(" | ")[0].removeprefix("| "): [c.strip(" |") for c in re.split(r"(?<!\\)\|", line)[2:-1]]
        for line in lines[2:12]
    }
    assert all(len(cells) == 10 for cells in table.values())
    assert table["toy norm-gwc"][4] == r"failed: ValueError: a \| b_c & 100%"
    assert table["toy lm"][:7] == ["not run"] * 7
    assert table["toy baseline"][2].startswith("50.00<br>[") and "n=40" in table["toy baseline"][2]
    assert "+40.00 [" in table["toy norm"][2] and "*" not in table["toy norm"][2]  # one seed
    assert table["Qwen2.5-7B norm (paper)"][0] == "75.60"


def test_the_terminal_shows_every_measured_model_and_no_line_is_too_long(rows, capsys):
    show(Table4.of(rows), Console(width=80))
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80 and printed.count("Table 4") == 2  # four models, three abreast
    average = [line.split() for line in printed.splitlines() if "Avg" in line]
    assert average[0][:2] == ["Avg", "50.0"] and "+40.0" in average[0] and average[1][-2:] == ["not", "run"]
    assert " ".join(table4.ONE_SEED.split()) in " ".join(printed.split())
    assert "failed: ValueError" in " ".join(printed.split()) and "paper" not in printed


def test_latex_is_escaped_and_csv_has_every_cell(rows):
    text = latex(Table4.of(rows))
    assert r"failed: ValueError: a | b\_c \& 100\%" in text
    assert text.count(r"\midrule") == 2 and r"\bottomrule" in text
    assert not re.search(r"(?<!\\)[%_]", text.replace(r"\begin{table}", ""))
    lines = list(csv.DictReader(comma_separated(Table4.of(rows)).splitlines()))
    assert len(lines) == len(rows)
    assert [line["score"] for line in lines if line["method"] == "lm"][:2] == ["not run", "not run"]


def test_a_method_with_several_seeds_is_one_line():
    rows = three_seeds()
    lines = dict(table4.table_lines(rows))
    assert list(lines)[:3] == ["toy baseline, 3 seeds", "toy norm, 3 seeds", "toy norm-gwc"]
    assert lines["toy norm, 3 seeds"]["pope"]["delta"] == pytest.approx(25)
    text = markdown(Table4.of(rows))
    assert "| toy norm, 3 seeds | 55.00<br>[" in text and r"<br>+25.00\* [" in text
    assert table4.SEVERAL_SEEDS in text and table4.ONE_SEED in text
    unknown = [row | {"delta_ci95": None, "p_value": None, "p_holm": None} for row in rows]
    assert "<br>+25.00 [needs more seeds]" in markdown(Table4.of(unknown))
    assert draw_differences(Table4.of(unknown)).startswith("<?xml")
    flat = list(csv.DictReader(comma_separated(Table4.of(rows)).splitlines()))
    assert [line["seeds"] for line in flat if line["method"] == "norm"][:11:10] == ["1 2 3", ""]
    assert draw_differences(Table4.of(rows)).startswith("<?xml")
    alone = [row for row in rows if row["method"] != "norm-gwc"]
    assert table4.ONE_SEED not in markdown(Table4.of(alone))


def test_the_metric_of_every_column_is_named(rows):
    (note,) = (note for note in Table4.of(rows).notes if note.startswith("Metrics."))
    for benchmark in BENCHMARKS:
        assert f"{benchmark.title}: {benchmark.measures} ({benchmark.task} {benchmark.metric})" in note
    assert "5-shot" not in note and note.replace("_", r"\_") in markdown(Table4.of(rows))
    assert note.replace("_", r"\_") in latex(Table4.of(rows))


def test_files_are_a_pure_function_of_scores(rows, tmp_path, capsys):
    table = Table4.of(rows)
    write_tables(table, tmp_path)
    names = [f"tables/table4.{suffix}" for suffix in ("md", "tex", "csv")]
    names.append("figures/table4.svg")

    def written():
        return {name: ((tmp_path / name).read_bytes(), (tmp_path / name).stat().st_mtime_ns) for name in names}

    before = written()
    write_tables(table, tmp_path)
    assert written() == before
    assert "failed" in capsys.readouterr().out


def test_parts_of_a_benchmark_add_up_to_it(rows):
    parts = {"lower & half": {"score": 100.0, "n": 20}, "upper": {"score": 80.0, "n": 20}}
    assert cell(rows, "norm", "pope")["subtasks"] == parts
    assert "subtasks" not in cell(rows, "baseline", "avg")
    assert "subtasks" not in cell(rows, "baseline", "pope", "paper")


def test_further_numbers_follow_the_parts_with_their_mean_over_seeds():
    models = [Model(f"baseline-seed{seed}", "toy", "baseline", seed) for seed in (1, 2)]
    results = {model.name: nine(20) for model in models}
    for of_model, value in zip(results.values(), (40.0, 50.0), strict=True):
        of_model["pope"] = of_model["pope"] | {"further": {"F1": value}}
    mean = score_rows(models, results, "baseline")
    assert cell(mean, "baseline", "pope")["subtasks"]["F1"] == {"score": 45.0, "n": 40}


def test_a_trial_does_not_get_into_a_table(tmp_path):
    models = [Model("baseline", "toy", "baseline", 42)]
    rows = score_rows(models, {"baseline": nine(20)}, "baseline", limit=40)
    assert {row.get("limit") for row in rows} == {40, None}
    (tmp_path / "scores.json").write_text(json.dumps(rows))
    with pytest.raises(UserError, match="a trial with --limit 40"):
        FinishedRun.read(tmp_path)


@pytest.mark.parametrize("narrow", [{"delta": None}, {"delta": 0.3, "delta_ci95": [0.1 + 0.2, 0.1 + 0.2]}])
def test_a_figure_without_differences_or_with_an_interval_of_one_number_is_drawn(rows, narrow):
    """Its ends differ from the difference in the last bit."""
    narrowed = [row | narrow for row in rows if row["delta"] is not None]
    assert draw_differences(Table4.of(narrowed)).startswith("<?xml")


def test_tables_without_scores_name_the_file(tmp_path):
    with pytest.raises(UserError, match=r"scores\.json"):
        FinishedRun.read(tmp_path)


def test_departures_from_the_stock_harness_are_named_with_their_models():
    shared, single = "Answers: greedy.", "Stop strings end an answer."
    models = {"a": {"deviations": [shared, single]}, "b": {"deviations": [shared]}, "text": {}}
    record = {"models": models, "settings": {"max_new_tokens": 16}}
    (note,) = table4.departures(record)
    assert note == f"Not as lmms-eval does it. {shared} (a) {single} Answers end after 16 tokens."
    assert table4.departures({}) == []
