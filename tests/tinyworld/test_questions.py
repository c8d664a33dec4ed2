import random
from collections import Counter

import pytest

from tinyworld import layouts
from tinyworld.distractors import distractors
from tinyworld.questions import FAMILIES, ask, descriptions
from tinyworld.scenes import POSITIONS, Item


RED_CIRCLE = Item("shape", "circle", "red", "big")
BLUE_STAR = Item("shape", "star", "blue", "small")
LETTER = Item("letter", "C", "green")
SCENE = (RED_CIRCLE, BLUE_STAR, None, None, LETTER, None, None, None, None)


def answers(items, family):
    return {q.text: q.answer for q in ask(items, random.Random(0), (family,))}


def test_a_known_scene_has_the_expected_answers():
    assert answers(SCENE, "colour") == {"What colour is the circle?": "red", "What colour is the star?": "blue"}
    assert answers(SCENE, "shape") == {"What shape is red?": "circle", "What shape is blue?": "star"}
    assert answers(SCENE, "size") == {"What size is the circle?": "big", "What size is the star?": "small"}
    assert answers(SCENE, "where") == {"Where is the circle?": "northwest", "Where is the star?": "north"}
    assert answers(SCENE, "count")["How many shapes are there?"] == "2"
    assert answers(SCENE, "at") == {
        "What shape is in the northwest?": "circle",
        "What colour is in the northwest?": "red",
        "What shape is in the north?": "star",
        "What colour is in the north?": "blue",
    }


def test_lines_of_text_are_read_in_order():
    word = tuple(Item("letter", x) for x in "FOX")
    assert answers((None,) * 3 + word + (None,) * 3, "read") == {"What is written in the image?": "FOX"}
    line = (RED_CIRCLE, Item("digit", "4"), Item("digit", "2"))
    form = (*line, BLUE_STAR, *line[1:], Item("shape", "ring"), *line[:0:-1])
    assert answers(form, "field") == {
        "What is the value of the circle?": "42",
        "What is the value of the star?": "42",
        "What is the value of the ring?": "24",
    }


def test_a_colour_shared_by_two_things_is_not_asked():
    twins = (RED_CIRCLE, Item("shape", "star", "red", "small"), *(None,) * 7)
    assert not answers(twins, "shape")
    assert answers((RED_CIRCLE, Item("letter", "C", "red"), *(None,) * 7), "shape") == {}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_wrong_answers_are_wrong_and_cells_show_the_answer(family):
    seen = 0
    for seed in range(200):
        rng = random.Random(seed)
        items = layouts.draw(rng)
        for question in ask(items, rng, (family,)):
            seen += 1
            assert question.answer not in question.wrong
            assert len(set(question.wrong)) == len(question.wrong) >= 1
            assert all(0 <= cell < len(POSITIONS) for cell in question.cells)
    assert seen > 20


def test_the_answers_to_questions_of_existence_are_true():
    count = Counter()
    for seed in range(100):
        rng = random.Random(seed)
        items = layouts.objects(rng)
        shown = {text for item in items if item is not None and item.kind == "shape" for text in descriptions(item)}
        for question in ask(items, rng, ("exists",)):
            named = question.text.removeprefix("Is there a ").removesuffix(" in the image?")
            assert (named in shown) == (question.answer == "yes")
            count[question.answer] += 1
    assert count["yes"] == count["no"] > 100


def test_distractors_follow_the_answer_in_its_group_of_four():
    values = "abcdefgh"
    assert distractors("a", values) == ("b", "c", "d")
    assert distractors("c", values) == ("d", "a", "b")
    assert distractors("g", values) == ("h", "e", "f")


def test_the_last_group_overlaps_and_a_small_set_is_one_group():
    assert distractors("i", "abcdefghi") == ("f", "g", "h")
    assert distractors("small", ("small", "big")) == ("big",)
