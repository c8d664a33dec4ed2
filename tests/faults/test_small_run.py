"""Comparing a killed run with a straight one finds what is missing, stray and different, and nothing else."""

import pytest

from tests.faults.kills import same_log
from tests.faults.small_run import PHASES, RUN, before, differences


STAGE1 = PHASES[1]


@pytest.fixture
def straight(tmp_path):
    clone = tmp_path / "straight"
    for phase in PHASES:
        for name in phase.made:
            path = clone / RUN / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(name) if path.suffix else path.mkdir()
    stage = clone / RUN / STAGE1.made[0]
    for name in ("model.safetensors", "log.jsonl", "settings.json"):
        (stage / name).write_text(name)
    return clone


def test_a_copy_before_a_phase_lacks_what_it_and_later_ones_make(straight, tmp_path):
    before(STAGE1, straight, tmp_path / "copy")
    assert {path.name for path in (tmp_path / "copy" / RUN).iterdir()} == {"data", "checkpoints"}
    assert not list((tmp_path / "copy" / RUN / "checkpoints").rglob("stage*"))


def test_every_difference_is_found(straight, tmp_path):
    before(PHASES[2], straight, tmp_path / "copy")
    stage = tmp_path / "copy" / RUN / STAGE1.made[0]
    assert differences(STAGE1, stage.parents[4], straight) == []
    (stage / "settings.json").write_text("other paths")
    assert differences(STAGE1, stage.parents[4], straight) == []
    (stage / "model.safetensors").write_text("another last bit")
    (stage / "log.jsonl").unlink()
    (stage / "torn.bin").touch()
    (stage / ".data.x.unfinished").mkdir()
    root = STAGE1.made[0]
    assert differences(STAGE1, stage.parents[4], straight)[1:] == [
        f"{root}/{name}" for name in ("log.jsonl", "model.safetensors", "torn.bin")
    ]


def line(step, mean):
    return {"step": step, "loss": mean, "entropy": mean, "mean_token_accuracy": mean, "num_tokens": 100 * step}


@pytest.mark.parametrize("log, same", [
    ([line(10, 2.0), line(20, 1.0)], True),
    ([line(10, 2.0), line(16, 0.5), line(20, 1.75)], True),
    ([line(4, 5.0), line(10, 0.0), line(20, 1.0)], True),
    ([line(10, 2.0), line(16, 0.5), line(20, 1.0)], False),  # another mean of steps 11 to 20
    ([line(10, 2.0), line(16, 0.5), line(20, 1.75) | {"num_tokens": 400}], False),
    ([line(10, 2.0), line(12, 1.0), line(16, 1.0), line(20, 1.0)], False),  # two lines more
    ([line(16, 1.1875), line(20, 1.75)], False),  # a line less
    ([line(10, 2.0)], False),
])  # fmt: skip
def test_a_log_may_have_the_one_line_that_a_signal_adds(log, same):
    assert same_log(log, [line(10, 2.0), line(20, 1.0)]) == same
