import json
import random
import re
from collections import Counter

import pytest

from research.pictures import language, layouts, questions
from research.pictures.nouns import HELD_OUT_KINDS, HELD_OUT_KNOWLEDGE, KIND, KNOWLEDGE, NOUNS
from research.pictures.world import WORLD
from tinyworld.conversations import write_conversations
from tinyworld.language import DESCRIBE
from tinyworld.scenes import POSITIONS, Item


HELD_OUT = [f"knowledge, {new}" for new in (questions.NEW_COMBINATION, questions.NEW_KIND, questions.NEW_KNOWLEDGE)]


def scene_of(*nouns):
    return tuple(Item("picture", noun) if noun else None for noun in [*nouns, *[None] * (9 - len(nouns))])


def asked_of(seeds, families=questions.FAMILIES):
    for seed in range(seeds):
        rng = random.Random(seed)
        items = layouts.draw(rng)
        for question in questions.ask(items, rng, families):
            yield items, question


def test_a_question_of_knowledge_has_one_right_answer_in_the_picture():
    families = ("knowledge", *HELD_OUT)
    seen = Counter()
    for items, question in asked_of(600, families):
        (known,) = (k for k in KNOWLEDGE.values() if question.text == f"Which thing in the image {k.which}?")
        shown = {noun for _, noun in questions.pictures(items)}
        assert {noun for noun in shown if noun not in known.false_of} == {question.answer} <= known.true_of
        for wrong in question.wrong:  # a right thing that is not there, or a wrong one
            assert (wrong in known.true_of and wrong not in shown) or wrong in known.false_of
        assert items[question.cells[0]].name == question.answer
        seen[question.family] += 1
    assert set(seen) == set(families)


def test_nothing_that_is_held_out_is_asked_in_training():
    nouns = Counter()
    for items, question in asked_of(600):
        assert ", " not in question.family
        about = [items[cell].name for cell in question.cells if items[cell].kind == "picture"]
        if question.family not in ("field", "read"):
            nouns.update(about)
            assert not {KIND.get(noun) for noun in about} & HELD_OUT_KINDS
        if question.family == "knowledge":
            (known,) = (k for k in KNOWLEDGE.values() if k.which in question.text)
            assert known.name not in HELD_OUT_KNOWLEDGE
            assert not questions.is_new_combination(known.name, question.answer)
    assert len(nouns) > 200


@pytest.mark.parametrize("family", questions.FAMILIES)
def test_options_are_distinct_and_hold_the_answer_once(family):
    found = [question for _, question in asked_of(150, (family,))]
    assert found
    for question in found:
        assert len({question.answer, *question.wrong}) == 1 + len(question.wrong)


@pytest.mark.parametrize("family", ["exists", "about"])
def test_yes_is_as_frequent_as_no(family):
    answers = Counter(question.answer for _, question in asked_of(400, (family,)))
    assert abs(answers["yes"] / answers.total() - 0.5) < 0.08


def test_a_property_is_asked_of_one_thing_that_has_it_and_of_one_that_lacks_it():
    for seed in range(100):
        rng = random.Random(seed)
        answers = {}
        for question in questions.about(layouts.things(rng), rng):
            text = re.sub(f"the thing in the ({'|'.join(POSITIONS)})\\b", "it", question.text)
            answers.setdefault(text, []).append(question.answer)
        assert all(sorted(each) == ["no", "yes"] for each in answers.values())


def test_the_text_alone_seldom_tells_kinds_and_numbers():
    right, offered, numbers = Counter(), Counter(), Counter()
    for seed in range(1500):
        rng = random.Random(seed)
        items = layouts.things(rng)
        for question in questions.kind(items, rng):
            right[question.answer] += 1
            offered.update((question.answer, *question.wrong))
        numbers.update(question.answer for question in questions.count(items, rng))
    assert all(right[kind] / offered[kind] < 0.45 for kind, _ in offered.most_common(10))
    assert max(numbers.values()) < 0.5 * numbers.total() and set(numbers) == {"1", "2", "3", "4"}


def test_wrong_nouns_are_not_told_by_the_question_or_their_kind():
    alike = Counter()
    for seed in range(600):
        rng = random.Random(seed)
        items = layouts.things(rng, count=4)
        for question in questions.beside(items, rng):
            named = question.text.removesuffix("?").split(" the ")[-1]
            assert named not in question.wrong
        for question in questions.name(items, rng):
            options = (question.answer, *question.wrong)
            kinds = Counter(KIND.get(option) for option in options)
            alike[kinds[KIND.get(question.answer)] > 1] += 1
    assert 0.4 < alike[True] / alike.total() < 0.75


def test_what_is_asked_about_a_known_scene():
    items = scene_of("bus", None, "banana", None, "hammer", "melon")
    asked = {question.text: question for question in questions.ask(items, random.Random(0))}
    assert asked["Where is the bus?"].answer == "northwest"
    assert asked["What is in the center?"].sentence == "There is a hammer in the center."
    assert asked["How many fruits are in the image?"].sentence == "There are 2 fruits."
    known = questions.ask(scene_of("bus", None, "banana"), random.Random(0), ("knowledge", *HELD_OUT))
    eat = next(question for question in known if "would you eat" in question.text)
    assert (eat.answer, eat.sentence) == ("banana", "You would eat the banana; it is in the northeast.")


def test_absent_descriptions_are_absent():
    for seed in range(100):
        rng = random.Random(seed)
        items = layouts.things(rng, count=5)
        shown = {text for item in items if item for text in questions.descriptions(item)}
        absent = questions.absent_descriptions(items, rng, 6)
        assert len(set(absent)) == 6 and not shown & set(absent)


def test_the_caption_names_every_thing_once():
    for seed in range(50):
        items = layouts.things(random.Random(seed))
        told = WORLD.caption(items)
        assert told.count(";") == sum(item is not None for item in items) - 1
        assert all(item.name in told for item in items if item is not None)


def test_turns_are_in_sentences_in_a_word_and_with_options():
    turns = []
    for seed in range(200):
        rng = random.Random(seed)
        turns += WORLD.scene_turns(layouts.things(rng), rng, 3)
    kinds = Counter(
        "options" if "the given choices" in question else "word" if "single word" in question else "sentence"
        for question, _ in turns
    )
    assert all(kinds[kind] > 60 for kind in ("options", "word", "sentence"))
    assert all(answer in NOUNS or answer.endswith(".") or len(answer.split()) < 4 for _, answer in turns)


def test_a_scene_in_words_starts_with_its_caption_and_asks_what_it_tells():
    for seed in range(100):
        (first, _), *others = turns = language.told_turns(random.Random(seed), 3)
        caption, asked = first.split("\n", 1)
        assert re.match(f"({'|'.join(POSITIONS)}): ", caption) and caption.endswith(".") and asked
        assert len(turns) <= 3 and not any(caption in question for question, _ in others)
        for question, answer in ((asked, turns[0][1]), *others):
            if found := re.fullmatch(r"What is in the (\w+)\?\nAnswer .*", question):
                place = re.search(rf"\b{found[1]}: (?:an? |the )?([^;]*?)[;.]", caption)
                assert place and place[1] == answer


def test_a_description_ends_half_of_the_conversations():
    described = 0
    for seed in range(200):
        rng = random.Random(seed)
        items = layouts.things(rng)
        *before, (question, answer) = WORLD.scene_turns(items, rng, 3)
        described += (question, answer) == (DESCRIBE, WORLD.caption(items))
        assert all(asked != DESCRIBE for asked, _ in before)
    assert 70 < described < 130


def test_stage_1_begins_with_images_of_one_thing_and_stage_2_without_images(tmp_path):
    write_conversations(tmp_path, WORLD, images=100)
    stage1, stage2 = (json.loads((tmp_path / f"stage{stage}.json").read_text()) for stage in (1, 2))
    things = [row["conversations"][1]["value"].count(";") + 1 for row in stage1]
    assert set(things[:50]) == {1} and sum(things[50:]) > 100
    assert all("image" not in row for row in stage2[:6]) and "image" in stage2[6]
    assert {row["image"] for row in stage2 if "image" in row} <= {row["image"] for row in stage1[50:]}
