"""The verdict of a profile: inert or not by the stated rule, in six lines at most."""

from copy import deepcopy
from math import radians

import pytest
import yaml

from modeling_aligned_llava.diagnostics.norm_profile.verdict import STUDY, verdict
from tests.modeling_aligned_llava.diagnostics.profiles import small_profile


def with_angles(visual: list[float], text: list[float], norms: list[float]) -> dict:
    """A profile with these mean angles in degrees, and norms of text by layer."""
    profile = deepcopy(small_profile())
    for series, angles in (("visual", visual), ("text", text)):
        profile["layers"][series]["angle"]["mean"] = [radians(angle) for angle in angles]
    profile["layers"]["text"]["norm"]["mean"] = norms
    profile["norms"]["visual tokens at layer 0"]["mean"], profile["ratio"] = 40.0, 32.0
    profile["norms"]["text embeddings"]["mean"] = 1.25
    return profile


@pytest.mark.parametrize(
    ("visual", "inert", "layers", "words"),
    [
        ([1, 1, 2, 20], "yes", [0, 1, 2], "inert (in 3 of 4 layers, more than half)"),
        ([1, 1, 20, 20], "in part", [0, 1], "inert in layers 0-1 only (2 of 4, not more than half)"),
        ([20, 20, 30, 10], "no", [], "not inert"),
    ],
)
def test_visual_tokens_are_inert_where_most_layers_rotate_them_less_than_half_as_far(visual, inert, layers, words):
    judged = verdict(with_angles(visual, [20, 20, 20, 20], [1.0, 4.0, 5.0, 6.0, 7.0]))
    assert (judged["inert"], judged["inert_layers"]) == (inert, layers)
    assert f"Verdict: the visual tokens are {words}." in judged["lines"]
    assert judged["lift"] == 4 and judged["met_ratio"] == 10 and judged["rotation"]["text"] == pytest.approx(20)
    assert len(judged["lines"]) <= 6 and all(len(line) < 240 for line in judged["lines"])
    assert judged["lines"][0].startswith("Visual tokens have norm 40: 32x text embeddings (1.25), 10x the text")


def test_the_study_quoted_is_that_of_the_models_lift():
    regimes = yaml.safe_load(STUDY.read_text(encoding="utf-8"))["regimes"]
    limits = [regime["below"] for regime in regimes]
    assert limits == sorted(limits) and limits[-1] == float("inf")
    for lift, regime in ((1.01, regimes[0]), (1e6, regimes[-1])):
        lines = verdict(with_angles([1, 1], [9, 9], [1.0, lift, lift]))["lines"]
        assert any(regime["found"] in line for line in lines)


def test_without_text_there_is_no_verdict():
    profile = small_profile()
    del profile["layers"]["text"]
    assert verdict(profile) is None
