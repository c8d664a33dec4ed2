"""The answer of a fine-tuning run: its lines for each outcome."""

import re

import pytest

from eval.report.answer import answer


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
    ("gains", "shown", "recommended"),
    [
        (
            (0.1, 0.11, 0.12),
            "better; loss lower by 0.11 nats [0.085, 0.13], p = 0.003.",
            "train this model with norm.",
        ),
        ((-0.1, -0.11, -0.12), "worse; loss higher by 0.11 nats [0.085, 0.13], p = 0.003.", "leave the norm out: "),
        ((-0.1, 0.1, -0.3), "not shown; loss higher by 0.1 nats [-0.4, 0.6], p = 0.478.", "none for the norm"),
        ((0.5,), "needs more seeds; loss lower by 0.5 nats.", "none for the norm"),
        ((0.5, 0.5), "needs more seeds; loss lower by 0.5 nats.", "none for the norm"),
    ],
)
def test_a_difference_is_shown_if_its_interval_is_on_one_side_of_zero(gains, shown, recommended):
    lines = answer("mine", profile(), losses(*gains), None, ["baseline", "norm"])
    assert lines[0] == (
        "Are the visual tokens of mine inert? Yes: 40x the norm of text embeddings, 20x that of text in the decoder; "
        "rotation per layer visual 0.57°, text 29°."
    )
    seeds = f"{len(gains)} seed{'s' * (len(gains) > 1)}"
    assert lines[1] == f"Does the norm help? Against baseline, trained on the same rows, by held-out loss, {seeds}:"
    assert lines[2] == f"  norm: {shown}" and lines[3].startswith(f"Recommendation: {recommended}")
    assert lines[4].startswith("Not covered: benchmarks (give --data), other data") and len(lines) == 5


def test_a_model_that_is_not_inert_is_said_to_be_none():
    lines = answer("mine", profile(1.0, 0.5), losses(0.5), None, ["baseline", "norm"])
    assert "inert? No: not" not in lines[0] and "inert? No: 1x" in lines[0] and "1 seed:" in lines[1]


def test_every_method_is_printed_and_p_values_hold_for_all_of_them():
    """Alone each would be better."""
    measured = losses(0.033, 0.135, 0.177, 0.075)
    methods = ["baseline", *(f"norm-{number}" for number in range(5))]
    by_method = measured | dict.fromkeys(methods[1:], measured["norm"])
    alone, together = (answer("mine", profile(), by_method, None, asked) for asked in (methods[:2], methods))
    assert alone[2].startswith("  norm-0: better; ") and "p = 0.0" in alone[2]
    assert [line.split(":")[0].strip() for line in together[2:7]] == methods[1:]
    assert all(": not shown; loss lower by 0.1 nats [" in line for line in together[2:7])
    assert "(p after Holm's correction over 5 methods):" in together[1] and "none for the norm" in together[7]


def test_methods_share_the_variance_between_trainings():
    """Beside other methods, seeds that agree by chance have a wider interval, and seeds that differ a narrower one."""

    def bounds(by_method, methods):
        lines = answer("mine", profile(), by_method, None, ["baseline", *methods])[2 : 2 + len(methods)]
        ends = [re.search(r"\[(.*), (.*)\]", line).groups() for line in lines]
        return [float(high) - float(low) for low, high in ends]

    measured = losses(0.1, 0.11, 0.12) | {name: losses(0.0, 0.2, 0.4)["norm"] for name in ("apart", "as far")}
    (agree,), (apart,) = bounds(measured, ["norm"]), bounds(measured, ["apart"])
    agree_beside, apart_beside, _ = bounds(measured, ["norm", "apart", "as far"])
    assert agree < agree_beside < apart_beside < apart
