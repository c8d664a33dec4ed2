"""The parts of the report by themselves: what they say of known numbers."""

import dataclasses
import json
import re

import pytest
from PIL import Image

from eval.data.benchmarks import BY_KEY
from eval.data.image_sample import in_benchmarks
from eval.report.finished_run import FinishedRun, probability, without_paths
from eval.report.page import measurements as looks
from eval.report.page.examples import A_BENCHMARK, DISAGREED, Example, choose, examples
from eval.report.page.inline_svg import INK, SERIES, inline_svg, series
from eval.report.page.score_table import measured, published
from eval.report.page.settings import settings
from eval.report.page.summary import summary
from eval.report.page.thumbnails import SIDE, document_image, shade_map, thumbnail
from eval.report.page.training_curves import training
from eval.report.tables.table4 import columns
from modeling_aligned_llava.errors import UserError
from tests.eval.report.stand_in import write_data, write_run


POPE = BY_KEY["pope"]
LIMITS = "What is missing, and limits"


@pytest.fixture
def nine(rows, tmp_path):
    return FinishedRun(tmp_path, rows, {})


def test_the_summary_says_which_way_and_how_sure(nine):
    said = dict(summary(nine, {"norm": {"profile": {"ratio": 177.2}}, "lm": {"error": "text-only"}}))
    assert said[""][0] == "norm, norm-gwc and lm compared with baseline on 9 benchmarks with 360 questions in all."
    assert said[""][1].startswith("The questions are not the official benchmarks'")
    higher, level, same = (
        said["norm against baseline"][1],
        said["lm against baseline"],
        said["norm-gwc against baseline"],
    )
    assert higher.startswith(
        "Significantly higher than baseline (p < 0.05 after Holm's correction): MMBench (+40.0), "
    )
    (unclear,) = level
    found = re.fullmatch(
        r"Difference not distinguishable from zero: HellaSwag \(\+5\.0; visible from (.*)\) and MMLU \(\+5\.0; .*\)\.",
        unclear,
    )
    assert found is not None
    # 2 of 40 pairs differ: 2.8 standard errors of their mean
    assert float(found[1]) == pytest.approx(280 * (0.05 * 0.95 / 40) ** 0.5, rel=0.15)
    assert len(same) == 1 and same[0].startswith("Difference not distinguishable from zero: MMBench (+0.0), ")
    assert said["norm against baseline"][0].startswith("Mean of the nine: higher (+40.0 points, 95 % interval +")
    assert said["Mean norm of visual tokens at the decoder's door, over that of text embeddings"] == [
        "norm: 177 times."
    ]
    limits = said[LIMITS]
    assert "norm-gwc: OCRBench failed (ValueError: a | b_c & 100%)." in limits
    assert any(limit.startswith("lm: not run on MMBench, ") and "sees no images" in limit for limit in limits)
    assert any("baseline: answers that could not be read" in limit and "POPE 10.0%" in limit for limit in limits)
    assert any("One training of each arm" in limit for limit in limits)


def test_no_toy_is_passed_off_as_a_result(nine):
    toy = dataclasses.replace(nine, rows=[row | {"backbone": "tinyworld"} for row in nine.rows])
    assert any("toy result" in sentence for sentence in summary(toy, {})[0][1])
    assert not any("toy" in sentence for sentence in summary(nine, {})[0][1])


def test_scores_of_the_official_questions_may_be_compared(nine):
    sizes = {key: benchmark.num_questions for key, benchmark in BY_KEY.items()} | {"avg": 9}
    official = dataclasses.replace(nine, rows=[row | {"n": row["n"] and sizes[row["benchmark"]]} for row in nine.rows])
    assert not any("official" in sentence for sentence in summary(official, {})[0][1])


def test_an_arm_whose_evaluation_did_not_end_is_named(nine):
    arms = {"baseline": ("toy", "baseline", 42), "norm-relative": ("toy", "norm-relative", 42)}
    models = {name: dict(zip(("backbone", "method", "seed"), key, strict=True)) for name, key in arms.items()}
    unfinished = dataclasses.replace(nine, record={"models": models})
    assert "norm-relative: no scores, as its evaluation did not end." in dict(summary(unfinished, {}))[LIMITS]


def test_two_seeds_are_arms_of_their_own_and_not_called_one(nine):
    double = nine.rows + [row | {"seed": 7} for row in nine.rows if row["source"] == "measured"]
    run = dataclasses.replace(nine, rows=double)
    assert [arm.name for arm in run.arms][::4] == ["baseline-seed42", "baseline-seed7"]
    assert not any("One training of each arm" in each for _, sentences in summary(run, {}) for each in sentences)


def test_cells_sort_by_their_numbers_and_say_what_is_behind_them(nine):
    table = dict(measured(nine))
    norm = dict(zip(columns(nine.rows), table["norm"], strict=True))["pope"]
    assert (norm.score, norm.value, norm.difference, norm.direction) == ("90.0", 90.0, "+40.0*", 1)
    assert "n = 40" in norm.details and "after Holm's correction; significant" in norm.details
    baseline = table["baseline"][0]
    assert baseline.difference == "" and "difference" not in baseline.details
    failed = dict(zip(columns(nine.rows), table["norm-gwc"], strict=True))["ocrbench"]
    assert failed.value is None and failed.score == "failed: ValueError: a | b_c & 100%"
    assert len(published(nine)) == 6 and published(nine)[0][1][0].details == "n = 1,164"


def example(number, *right):
    answers = {str(arm): ("", each) for arm, each in enumerate(right)}
    return Example(POPE, f"pope/{number}", number, "", "", answers)


def test_disagreement_comes_first_and_both_kinds_of_agreement_are_there():
    asked = [example(i, i % 3 == 0, i % 3 != 1) for i in range(60)]  # agreed right, agreed wrong, disagreed
    chosen = choose(asked)
    assert len(chosen) == A_BENCHMARK and all(each.disagreed for each in chosen[:DISAGREED])
    kinds = [each.answers["0"][1] for each in chosen[DISAGREED:]]
    assert kinds.count(True) == kinds.count(False) == 3
    assert choose(asked[::-1]) == chosen


def test_no_question_is_left_out_while_there_is_room():
    assert len(choose([example(i, True, False) for i in range(20)])) == A_BENCHMARK
    assert len(choose([example(i, True, True) for i in range(20)])) == A_BENCHMARK
    assert len(choose([example(i, False, i < 3) for i in range(5)])) == 5


def test_answers_and_verdicts_are_those_of_the_logs(tmp_path):
    shown, notes = examples(FinishedRun.read(write_run(tmp_path, None)))
    by_id = {each.id: each for each in shown}
    fourth = by_id["pope/pope/4"]
    assert fourth.question == "Is there a box 4 in the image?\nOne word." and fourth.target == "yes"
    assert fourth.answers["baseline"] == ("yes", True) and not fourth.answers["norm"][1]
    assert fourth.image is not None and fourth.image.startswith("data:image/webp;base64,")
    chosen = by_id["mmlu/mmlu_anatomy/4"]
    assert chosen.answers == {"baseline": ("B. two", True), "norm": ("A. one", False)} and chosen.image is None
    assert notes == [f"{title}: arms disagree on 3 of 12 questions." for title in ("POPE", "MMLU")]


def test_a_stale_result_that_does_not_count_is_not_shown(tmp_path):
    folder = write_run(tmp_path, None)
    content = json.loads((folder / "scores.json").read_text())
    for row in content:
        if row["benchmark"] == "pope" and row["method"] == "norm" and row["source"] == "measured":
            row["status"] = "not run"
    (folder / "scores.json").write_text(json.dumps(content))
    shown, _ = examples(FinishedRun.read(folder))
    assert all(list(each.answers) == ["baseline"] for each in shown if each.benchmark.key == "pope")


def test_the_picture_of_another_question_is_refused(tmp_path):
    root = write_data(tmp_path)
    image = document_image(root, POPE, 3, "Is there a box 3 in the image?\nOne word.")
    assert image is not None and image.size == (36, 28)
    for document, question in ((3, "Is there a box 4 in the image?"), (99, "Is there a box 99 in the image?")):
        with pytest.raises(UserError, match="no longer what was evaluated"):
            document_image(root, POPE, document, question)


def test_pictures_are_small_and_attention_is_what_is_not_shaded():
    import base64
    import io

    def opened(uri):
        return Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2])))

    assert opened(thumbnail(Image.new("RGB", (1000, 500)))).size == (SIDE, SIDE // 2)
    shade = opened(shade_map([[0.5, 0.25], [0.25, 0.0]])).getchannel("A")
    assert shade.size == (2, 2) and shade.getpixel((0, 0)) == 0
    assert shade.getpixel((1, 1)) > shade.getpixel((1, 0)) > 0


def test_training_is_told_by_stage_and_what_is_damaged_is_said(tmp_path, tiny_llava):
    run = FinishedRun.read(write_run(tmp_path, tiny_llava))
    stage_folder = tmp_path / "checkpoints" / "norm" / "stage2"
    (stage_folder / "log.jsonl").write_text('{"step": 10, "loss"')
    (stage_folder / "probe.jsonl").write_text("")
    stages, notes = training(run, {"baseline": 0, "norm": 1})
    (stage,) = stages
    assert stage.ledger == [[arm, "projector", 2.0, 1.0, pytest.approx(0.02)] for arm in ("baseline", "norm")]
    assert stage.clipping[0] == "baseline: clipped in 67% of the logged steps, median factor 0.50."
    loss = stage.figures[0]
    assert loss.rows == [["baseline", 10, 4.0], ["baseline", 20, 2.0], ["baseline", 30, 1.0]]
    damaged, empty = notes
    assert damaged.startswith("norm: stage2/log.jsonl is damaged (") and empty == "norm: stage2/probe.jsonl is empty."


def test_drawings_take_the_pages_colours_and_have_ids_of_their_own():
    def draw(axes):
        axes.plot([1, 2], color=series(9), label="a <b>")
        axes.legend()

    first, second = (inline_svg(name, 'a "title" <b>', draw) for name in ("one", "two"))
    assert inline_svg("one", 'a "title" <b>', draw) == first
    assert 'aria-label="a &#34;title&#34; &lt;b&gt;"' in first and "a &lt;b&gt;" in first and "<b>" not in first
    assert "var(--series-1)" in first and "currentColor" in first and "<style" not in first
    assert not any(colour in first for colour in (INK, *SERIES))
    assert 'id="one-' in first and "#one-" in first and 'id="one-' not in second


def test_paths_of_the_machine_lose_all_but_their_last_part():
    assert (
        without_paths("OSError: /data/a/b.json: cannot open '~/x/y.txt'") == "OSError: …/b.json: cannot open '…/y.txt'"
    )
    kept = "1/2 of org/name at https://example.org/a/b, and/or 3 / 4"
    assert without_paths(kept) == kept
    assert [probability(p) for p in (0.0004, 0.0123)] == ["p < 0.001", "p = 0.012"]


def test_settings_name_versions_and_weights_but_no_folder(tmp_path):
    parts = settings(FinishedRun.read(write_run(tmp_path, None)))
    assert ["torch", "2"] in parts["Versions"] and ["code", "not recorded"] in parts["Versions"]
    assert ["gpus", "none"] in parts["Hardware"] and ["tasks", "pope, mmlu"] in parts["Evaluation"]
    assert ["norm", "0" * 64] in parts["Checkpoints (sha256)"] and "/home" not in str(parts)


def test_looks_are_the_diagnostics_own_numbers(tmp_path, tiny_llava):
    from eval.diagnostics.measure.profile import profile

    run = FinishedRun.read(write_run(tmp_path, tiny_llava, arms=("baseline",)))
    found = looks.measure(run)["baseline"]
    sample = in_benchmarks(run.folder / "data" / "mirrors", 48, keys=("pope",))
    assert found["profile"]["ratio"] == pytest.approx(profile(str(tiny_llava), sample)["ratio"])
    numbers = found["attention"]["numbers"]
    assert 0 < numbers["mass"]["mean"] < 1 and numbers["mass"]["pictures"] == 12
    for picture in found["attention"]["pictures"]:
        for layer, inside in zip(picture["maps"], picture["inside"], strict=True):
            assert sum(map(sum, layer)) == pytest.approx(1, abs=1e-4)
            assert layer[0][0] * 0.5 < inside < 1  # the box covers most of the first of four cells


def test_an_arm_that_cannot_be_measured_costs_no_other(tmp_path, tiny_llava, capsys):
    run = FinishedRun.read(write_run(tmp_path, tiny_llava))
    config = tmp_path / "checkpoints" / "norm" / "stage2" / "config.json"
    content = config.read_text()
    config.unlink()
    config.write_text(content + "\n")
    found = looks.measure(run)
    assert found["norm"] == {"error": "its checkpoint is no longer the one that was evaluated"}
    assert "profile" in found["baseline"]
    assert "norm: no profile in the report" in capsys.readouterr().err


def test_without_boxes_maps_are_kept_and_no_share_is_claimed(tmp_path, tiny_llava):
    run = FinishedRun.read(write_run(tmp_path, tiny_llava, arms=("baseline",)))
    (tmp_path / "data" / "mirrors" / "boxes.json").unlink()
    attention = looks.measure(run)["baseline"]["attention"]
    assert len(attention["pictures"]) == looks.SHOWN and set(attention["numbers"]) == {"mass"}
    assert all(picture["inside"] is None for picture in attention["pictures"])
