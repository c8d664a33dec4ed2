"""The answer of a fine-tuning run: its lines for each outcome."""

import pytest

from eval.report.answer import Difference, answer, read_answer, write_answer


def profile(visual=40.0, angle=0.01):
    layers = {
        "text": {"norm": {"mean": [1.0, 2.0, 2.0]}, "angle": {"mean": [0.5, 0.5]}},
        "visual": {"norm": {"mean": [visual] * 3}, "angle": {"mean": [angle, angle]}},
    }
    norms = {"visual tokens at layer 0": {"mean": visual}, "text embeddings": {"mean": 1.0}}
    return {"layers": layers, "norms": norms, "ratio": visual}


def losses(*gains):
    """Of a baseline at 2 nats, and of `norm`, lower by `gains`, by seed."""
    by_seed = dict(enumerate(gains, 1))
    return {"baseline": dict.fromkeys(by_seed, 2.0), "norm": {seed: 2.0 - gain for seed, gain in by_seed.items()}}


@pytest.mark.parametrize(
    ("gains", "found", "recommended"),
    [
        ((0.1, 0.11, 0.12), "better, +0.11 nats [+0.085, +0.13].", "train this model with norm."),
        ((-0.1, -0.11, -0.12), "worse, -0.11 nats [-0.13, -0.085].", "leave the norm out: baseline is better."),
        ((0.1, -0.1, 0.0), "not shown, +0 nats [-0.25, +0.25].", "none for the norm"),
    ],
)
def test_a_difference_is_shown_if_its_interval_is_on_one_side_of_zero(gains, found, recommended):
    lines = answer("mine", profile(), losses(*gains), None, ["baseline", "norm"])
    assert lines[0] == (
        "Are the visual tokens of mine inert? Yes: 40x the norm of text embeddings, 20x that of text in the decoder; "
        "rotation per layer visual 0.57°, text 29°."
    )
    assert lines[1] == "Does the norm help? Against baseline, trained on the same rows, by held-out loss, 3 seeds:"
    assert lines[2] == f"  norm: {found}" and lines[3].startswith(f"Recommendation: {recommended}")
    assert lines[4].startswith("Not covered: benchmarks (give --data), other data") and len(lines) == 5


def test_one_seed_shows_nothing():
    lines = answer("mine", profile(1.0, 0.5), losses(0.5), None, ["baseline", "norm"])
    assert "inert? No: not" not in lines[0] and "inert? No: 1x" in lines[0] and "1 seed:" in lines[1]
    assert lines[2] == "  norm: not shown, +0.5 nats (one seed, no interval)."


@pytest.mark.parametrize(("interval", "sign"), [((0.1, 2.0), 1), ((-2.0, -0.1), -1), ((-1.0, 1.0), 0), (None, 0)])
def test_the_sign_needs_the_whole_interval(interval, sign):
    assert Difference("m", 1.0, interval, "nats").sign == sign


def test_it_is_kept_for_the_report(tmp_path):
    assert read_answer(tmp_path) == []
    write_answer(tmp_path, ["one", "two"])
    assert read_answer(tmp_path) == ["one", "two"]
