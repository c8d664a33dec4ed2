import random
import re

import pytest

from research.pictures.nouns import HELD_OUT_KINDS, HELD_OUT_KNOWLEDGE, KIND, KINDS, KNOWLEDGE, NOUNS
from research.pictures.options import name_turns, turns
from research.pictures.questions import is_new_combination


def read(question: str, letter: str) -> tuple[str, str, list[str]]:
    """What follows "Which of these", the option of the letter, and the others."""
    which = re.match(r"Which of these (.*)\?", question).group(1)
    options = dict(re.findall(r"([A-D])[.:] (.+?)(?=, [A-D]: |\n|$)", question))
    assert len(options) == 4
    return which, options.pop(letter), list(options.values())


@pytest.mark.parametrize("draw", [name_turns, turns])
def test_the_letter_is_that_of_the_only_true_option_and_nothing_held_out_is_asked(draw):
    knowledge = {known.which: known for known in KNOWLEDGE.values()}
    for question, letter in draw(random.Random(0), 600):
        which, answer, wrong = read(question, letter)
        assert {answer, *wrong} <= set(NOUNS) and not {KIND.get(noun) for noun in (answer, *wrong)} & HELD_OUT_KINDS
        asked = re.sub("^(is|are) (an? )?", "", which)
        if which in knowledge:
            known = knowledge[which]
            assert answer in known.true_of and set(wrong) <= known.false_of
            assert known.name not in HELD_OUT_KNOWLEDGE and not is_new_combination(known.name, answer)
        elif asked != answer:
            assert answer in KINDS[asked] and not set(wrong) & set(KINDS[asked])


def test_easy_turns_repeat_the_answer_and_letters_are_equally_frequent():
    easy = name_turns(random.Random(0), 2000)
    assert all(re.search(rf"^Which of these (is|are) (an? )?{re.escape(read(*turn)[1])}\?", turn[0]) for turn in easy)
    for letter in "ABCD":
        assert 400 < sum(answer == letter for _, answer in easy) < 600
