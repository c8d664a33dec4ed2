import random
from collections import Counter

import numpy as np
import pytest

from research.pictures.nouns import (
    FREQUENCY,
    HELD_OUT_KINDS,
    KIND,
    KINDS,
    KNOWLEDGE,
    NOUNS,
    draw_nouns,
    is_or_are,
    plural,
    with_article,
)
from research.pictures.sheet import SHEET, SIDE, picture_of


def test_every_noun_has_a_picture_of_its_own():
    pictures = [np.asarray(picture_of(noun)) for noun in NOUNS]
    assert all((picture[..., 3] > 128).sum() > 200 and max(picture.shape[:2]) <= SIDE for picture in pictures)
    assert len({picture.tobytes() for picture in pictures}) == len(NOUNS) == len(set(NOUNS))


def test_the_sheet_is_under_two_megabytes_and_names_its_licence():
    assert SHEET.stat().st_size < 2e6
    assert "Apache License" in SHEET.with_name("LICENSE-NOTO").read_text()


@pytest.mark.parametrize("known", KNOWLEDGE.values(), ids=KNOWLEDGE)
def test_knowledge_is_about_nouns_and_never_both_true_and_false(known):
    assert known.true_of <= set(NOUNS) and known.false_of <= set(NOUNS)
    assert not known.true_of & known.false_of
    assert known.true_of and len(known.false_of) > 100


def test_what_is_unclear_is_neither_true_nor_false():
    fly = KNOWLEDGE["fly"]
    assert {"owl", "bee"} <= fly.true_of and {"dog", "chair"} <= fly.false_of
    assert "penguin" not in fly.true_of | fly.false_of


def test_words_agree():
    assert (with_article("owl"), with_article("dog"), with_article("grapes"), with_article("bread")) == (
        "an owl",
        "a dog",
        "grapes",
        "bread",
    )
    assert (is_or_are("grapes"), is_or_are("bread")) == ("are", "is")
    assert [plural(kind) for kind in ("bird", "dish", "piece of clothing")] == [
        "birds",
        "dishes",
        "pieces of clothing",
    ]
    assert all(plural(kind) != kind for kind in KINDS)


def test_nouns_are_drawn_by_their_frequency_and_once_each():
    drawn = [draw_nouns(random.Random(seed), 3) for seed in range(3000)]
    assert all(len(set(nouns)) == 3 for nouns in drawn)
    first = Counter(nouns[0] for nouns in drawn)
    common = sorted(NOUNS, key=FREQUENCY.__getitem__)[-30:]
    expected = sum(FREQUENCY[noun] for noun in common) / sum(FREQUENCY.values())
    assert sum(first[noun] for noun in common) / 3000 == pytest.approx(expected, abs=0.03)
    assert {KIND.get(noun) for noun in common} & HELD_OUT_KINDS  # or their benchmarks would ask about rare things only


def test_no_more_nouns_are_drawn_than_there_are():
    assert sorted(draw_nouns(random.Random(0), 5, ("owl", "bus"))) == ["bus", "owl"]
