import random

import pytest

from tinyworld import layouts
from tinyworld.facts import EXAM_FACTS, STORY_FACTS
from tinyworld.language import (
    GRID,
    LISTED_WORDS,
    Choice,
    caption,
    choice_prompt,
    exam_for_training,
    listing,
    scene_turns,
    tale,
)
from tinyworld.scenes import POSITIONS, Item


def test_listing_has_a_word_for_each_visual_token_and_describes_each_cell():
    for seed in range(100):
        items = layouts.draw(random.Random(seed))
        words = listing(items)
        assert len(words) == GRID * GRID and set(words) <= set(LISTED_WORDS)
        for cell, item in enumerate(items):
            start = cell // 3 * 2 * GRID + cell % 3 * 2
            told = [words[start], words[start + 1], words[start + GRID], words[start + GRID + 1]]
            if item is None:
                assert told == [".", ".", ".", POSITIONS[cell]]
            else:
                kind = item.size if item.kind == "shape" else item.kind
                assert told == [kind, item.colour, item.name, POSITIONS[cell]]


def test_caption_names_all_items_in_reading_order():
    items = (None, Item("shape", "star", "red", "small"), *(None,) * 6, Item("digit", "7"))
    assert caption(items) == "north: a small red star; southeast: the digit 7."


def test_a_choice_keeps_its_answer_under_its_letter():
    choice = Choice.of("What?", "right", ("wrong", "bad", "no"), random.Random(3))
    assert choice.options["ABCD".index(choice.letter)] == "right"
    assert choice_prompt(choice, "lines").count("\n") == 5
    with pytest.raises(ValueError, match="no prompt style 'essay'"):
        choice_prompt(choice, "essay")


def test_turns_answer_with_a_letter_only_where_letters_are_offered():
    for seed in range(100):
        rng = random.Random(seed)
        for question, answer in scene_turns(layouts.draw(rng), rng, 4):
            if "letter from the given choices" in question:
                assert answer in "ABCD"
            else:
                assert answer not in ("A", "B", "C", "D")


def test_training_text_has_no_exam_or_story_of_the_benchmarks():
    told = {fact.story() for fact in STORY_FACTS}
    rng = random.Random(0)
    asked = {fact.fill(fact.kind.question) for fact in EXAM_FACTS}
    for _ in range(1000):
        assert not told & set(tale(rng).split("\n"))
        questions = "".join(prompt for prompt, _ in exam_for_training(rng))
        assert not asked & set(questions.split("\n"))
