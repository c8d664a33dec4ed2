"""Running, recording and resuming a study, with stages that are written instead of trained."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console

from modeling_aligned_llava.errors import UserError
from research.study import cells
from research.study.cells import StudyRun, best_rates, with_chosen_rates
from research.study.grid import read_study
from research.study.records import Records, final_loss, held_out_loss
from tests.research.study.stand_in import record_of, remove_record, write_stage, write_study
from tests.research.study.test_analysis import record_all
from tests.train.conftest import write_data


@pytest.fixture
def trained(monkeypatch):
    """The commands of the cells that were trained; each writes its stage. `norm` at rate 3 diverges."""
    commands = []

    def train(training, status):
        commands.append(training.command)
        words = list(training.command)
        root, method, seed = (words[words.index(name) + 1] for name in ("--output-root", "--method", "--seed"))
        rate = json.loads(words[words.index("--learning_rates") + 1])[r"^model\.multi_modal_projector\.linear_"]
        name = method if seed == "42" else f"{method}-seed{seed}"
        loss = None if rate > 0.02 else 1.0 + 10 * rate + int(seed) / 1000
        write_stage(cells.Path(root) / "checkpoints" / name / training.stage, loss)
        status.trained(training.name, training.stage)

    def run_steps(steps, devices, fail):
        for step in steps:
            step.work()
        return True

    monkeypatch.setattr(cells, "train", train)
    monkeypatch.setattr(cells, "run_steps", run_steps)
    monkeypatch.setattr(cells, "make_world", lambda *given: None)
    return commands


def start(path, tmp_path, devices=()):
    run = StudyRun(read_study(path), tmp_path / "records", tmp_path / "work", "cpu")
    run.run(devices, Console(quiet=True))
    return run


def test_a_finished_cell_leaves_a_small_record_and_no_weights(trained, tmp_path):
    path = write_study(tmp_path)
    run = start(path, tmp_path)
    lines = (tmp_path / "records/small/records.jsonl").read_text().splitlines()
    assert len(lines) == 12 and len(trained) == 12
    assert not list((tmp_path / "work").rglob("*.safetensors")) and all(len(line) < 5000 for line in lines)
    by_name = {cell.name: cell for cell in run.study.cells}
    record = record_of(run.records, by_name["norm_rate_0.3-seed43"])
    stage = record["stages"]["stage1"]
    assert (record["arm"], record["method"], record["seed"]) == ("norm, rate 0.3", "norm", 43)
    assert record["levels"] == {"rate": "0.3"} and {"date", "versions", "hardware"} <= record.keys()
    assert stage["held_out"] == {"step": [4, 8], "loss": [2.064, 1.064]} and record["seconds"] >= 0
    assert stage["settings"]["max_steps"] == 400 and stage["measured"]["stream_norm"] == 2.0
    assert stage["gradients"]["clip_factor"] == [0.5, 1.0] and len(stage["profile"]) == 2
    assert final_loss(record) == 1.064
    diverged = record_of(run.records, by_name["norm_rate_3-seed42"])
    assert diverged["stages"]["stage1"]["held_out"]["loss"] == [None, None] and final_loss(diverged) == float("inf")
    assert run.left
    assert StudyRun(read_study(path), tmp_path / "records", tmp_path / "work", "cpu").left == []


def test_a_cell_can_measure_information_before_its_checkpoints_go(trained, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "measured", lambda folder: [{"mean": float((folder / "config.json").exists())}])
    arms = [{"methods": ["baseline"], "stages": ["stage1"], "measure": "information"}]
    run = start(write_study(tmp_path, seeds=[42], arms=arms), tmp_path)
    (record,) = run.records.read()
    assert record["information"] == {"stage1": [{"mean": 1.0}]}


def test_a_study_continues_with_the_cells_that_are_left(trained, tmp_path):
    path = write_study(tmp_path)
    first = start(path, tmp_path)
    (cell,) = (cell for cell in first.study.cells if cell.name == "baseline-seed44")
    remove_record(first.records, cell)
    trained.clear()
    start(path, tmp_path)
    assert len(trained) == 1 and trained[0][trained[0].index("--seed") + 1] == "44" and record_of(first.records, cell)
    message = r"records\.jsonl: baseline-seed42 was made with other settings: remove its line, or"
    with pytest.raises(UserError, match=message):
        start(write_study(tmp_path, settings={"steps": 0.25}), tmp_path)


def test_records_that_are_added_at_the_same_moment_are_all_kept_in_order(tmp_path):
    added = [{"arm": arm, "seed": seed} for seed in range(8, 12) for arm in ("norm", "baseline")]
    with ThreadPoolExecutor(len(added)) as threads:  # each with a lock of its own, as processes have
        list(threads.map(lambda record: Records(tmp_path, "small").add(record, {}), added))
    assert Records(tmp_path, "small").read() == sorted(added, key=lambda each: (each["arm"], each["seed"]))


def test_what_cells_share_is_named_in_every_command(trained, tmp_path):
    start(write_study(tmp_path), tmp_path)
    shared = (tmp_path / "work").resolve()
    for words in trained:
        assert words[words.index("--data") + 1] == str(shared / "data/tinyworld")
        assert words[words.index("--data_cache") + 1] == str(shared / "prepared")


def test_each_method_takes_its_best_rate_from_another_study(trained, tmp_path):
    folder = tmp_path / "records"
    chosen = write_study(tmp_path, "fair", rates_from="small", arms=[{"methods": ["norm"]}], reference="norm")
    with pytest.raises(UserError, match="fair: the rate of norm comes from small, which has no result of it"):
        start(chosen, tmp_path)
    start(write_study(tmp_path), tmp_path)
    assert best_rates(Records(folder, "small").read()) == {("norm", frozenset()): 0.3}
    study = with_chosen_rates(read_study(chosen), folder)
    assert [arm.settings["rate"] for arm in study.arms] == [0.3] and study.arms[0].label == "norm"


def test_a_rate_is_that_of_the_same_levels_where_they_were_swept(tmp_path):
    swept = {"rate": [0.3, 3.0], "bypassed layer": {"0": {"bypassed_layers": [0]}, "none": {}}}
    rates = read_study(
        write_study(tmp_path, arms=[{"methods": ["norm"], "stages": ["stage1"], "vary": swept}], reference="norm")
    )
    best = {"0": "3", "none": "0.3"}
    losses = lambda arm, _: 1.0 if best[arm.split("layer ")[1]] == arm.split("rate ")[1].split(",")[0] else 2.0  # noqa: E731
    record_all(rates, tmp_path, tmp_path, losses)
    vary = {"bypassed layer": swept["bypassed layer"], "seed axis": {"a": {}}}
    arms = [{"methods": ["norm"], "stages": ["stage1"], "vary": vary}]
    chosen = with_chosen_rates(
        read_study(write_study(tmp_path, "fair", rates_from="small", arms=arms, reference="norm")), tmp_path
    )
    assert {arm.levels["bypassed layer"]: arm.settings["rate"] for arm in chosen.arms} == {"0": 3.0, "none": 0.3}


def test_the_held_out_loss_of_a_stage_is_its_last(tmp_path):
    write_stage(tmp_path / "stage", 0.25)
    assert held_out_loss(tmp_path / "stage" / "log.jsonl") == 0.25


@pytest.mark.slow
def test_a_cell_is_trained_in_both_stages(tmp_path):
    """For real, on a handful of rows."""
    data = tmp_path / "work/data/tinyworld"
    data.mkdir(parents=True)
    write_data(data)
    small = {"max_steps": 2, "save_steps": 1, "eval_steps": 1, "logging_steps": 1, "eval_rows": 4}
    small |= {"global_batch_size": 4, "per_device_train_batch_size": 4}
    arm = {"methods": ["norm-stream"], "settings": {"norm_fields": {"target_scale": 2.0}, "bypassed_layers": [0]}}
    path = write_study(tmp_path, settings=small, seeds=[43], reference="norm-stream", arms=[arm])
    run = start(path, tmp_path, [None])
    (record,) = run.records.read()
    assert list(record["stages"]) == ["stage1", "stage2"]
    first = record["stages"]["stage1"]
    assert first["held_out"]["step"] == [1, 2] and [line["step"] for line in first["profile"]] == [0, 1, 2]
    visual = first["profile"][0]["visual"]["norm"]
    assert visual[0] == visual[1] == pytest.approx(2 * first["measured"]["stream_norm"], rel=0.01)
    assert not run.root(run.study.cells[0]).exists()
