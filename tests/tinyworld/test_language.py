import random

from tinyworld import layouts
from tinyworld.language import Choice, caption, choice_prompt, scene_turns
from tinyworld.scenes import Item


def test_caption_names_all_items_in_reading_order():
    items = (None, Item("shape", "star", "red", "small"), *(None,) * 6, Item("digit", "7"))
    assert caption(items) == "north: a small red star; southeast: the digit 7."


def test_a_choice_keeps_its_answer_under_its_letter():
    choice = Choice.of("What?", "right", ("wrong", "bad", "no"), random.Random(3))
    assert choice.options["ABCD".index(choice.letter)] == "right"
    assert choice_prompt(choice, "lines").count("\n") == 5


def test_turns_answer_with_a_letter_only_where_letters_are_offered():
    for seed in range(100):
        rng = random.Random(seed)
        for question, answer in scene_turns(layouts.draw(rng), rng, 4):
            if "letter from the given choices" in question:
                assert answer in "ABCD"
            else:
                assert answer not in ("A", "B", "C", "D")
