import random

from research.pictures.general_knowledge import exams, stories, text_question, text_turns, training_stories
from tinyworld.facts import MMLU_SUBJECTS


def test_all_57_subjects_have_questions_of_both_splits():
    assert sorted(exams()) == sorted(MMLU_SUBJECTS)
    assert all(len(exam["dev"]) == 5 and exam["test"] for exam in exams().values())
    assert sum(len(exam["test"]) for exam in exams().values()) > 200


def test_the_right_option_is_there_once():
    for exam in exams().values():
        for choice in exam["test"] + exam["dev"]:
            assert len(set(choice.options)) == 4


def test_training_never_sees_a_question_of_the_test():
    test = {choice.question for exam in exams().values() for choice in exam["test"]}
    rng = random.Random(0)
    asked = {question.split("\n")[0] for _ in range(300) for question, _ in text_turns(rng, 3)}
    assert not test & asked and len(asked) > 200
    assert all(text_question(rng).question in test for _ in range(50))


def test_a_story_has_its_own_ending_and_three_of_others():
    validation = stories()
    assert len(validation) == 100
    assert all(len({story.ending, *story.wrong}) == 4 for story in validation)
    assert all(story.beginning.endswith(".") and story.subject for story in validation)
    assert not {story.heading for story in training_stories()} & {story.heading for story in validation}
