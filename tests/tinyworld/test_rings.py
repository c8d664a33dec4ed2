from tinyworld.rings import others


def test_the_others_follow_in_the_ring_of_four():
    values = "abcdefgh"
    assert others("a", values) == ("b", "c", "d")
    assert others("c", values) == ("d", "a", "b")
    assert others("g", values) == ("h", "e", "f")


def test_the_last_ring_overlaps_and_a_small_set_is_one_ring():
    assert others("i", "abcdefghi") == ("f", "g", "h")
    assert others("small", ("small", "big")) == ("big",)
