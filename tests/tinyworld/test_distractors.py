from tinyworld.distractors import distractors


def test_distractors_follow_the_answer_in_its_group_of_four():
    values = "abcdefgh"
    assert distractors("a", values) == ("b", "c", "d")
    assert distractors("c", values) == ("d", "a", "b")
    assert distractors("g", values) == ("h", "e", "f")


def test_the_last_group_overlaps_and_a_small_set_is_one_group():
    assert distractors("i", "abcdefghi") == ("f", "g", "h")
    assert distractors("small", ("small", "big")) == ("big",)
