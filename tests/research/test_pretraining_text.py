import random

from research.pretraining_text import GRID, LISTED_WORDS, exam_for_training, listing, tale
from tinyworld import layouts
from tinyworld.facts import EXAM_FACTS, STORY_FACTS
from tinyworld.scenes import POSITIONS


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


def test_training_text_has_no_exam_or_story_of_the_benchmarks():
    told = {fact.story() for fact in STORY_FACTS}
    rng = random.Random(0)
    asked = {fact.fill(fact.kind.question) for fact in EXAM_FACTS}
    for _ in range(1000):
        assert not told & set(tale(rng).split("\n"))
        questions = "".join(prompt for prompt, _ in exam_for_training(rng))
        assert not asked & set(questions.split("\n"))
