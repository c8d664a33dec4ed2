from research.pictures import lookups
from research.pictures.questions import FAMILIES


class Blind:
    """Answers rightly whatever it is told in words, and nothing about an image."""

    def __init__(self, asked):
        self.known = {each.prompt: each.answer for each in asked if each.image is None}

    def render(self, text, images):
        return text

    def answer(self, prompts, images, max_new_tokens):
        assert [len(each) for each in images] == [prompt not in self.known for prompt in prompts]
        return [f" {self.known.get(prompt, 'nothing').capitalize()}." for prompt in prompts]


def test_a_blind_model_is_right_only_where_the_caption_tells():
    asked = lookups.draw(scenes=30)
    found = lookups.measure(Blind(asked), asked, batch_size=7)
    assert {cell.family for cell in found} == set(FAMILIES) - {"read", "field"}  # which need a sign or a form
    for cell, (right, total) in found.items():
        assert right == (total if cell.source == "caption" else 0)
        assert found[cell._replace(source="image")][1] == total > 0
    assert not any(cell.family == "exists" and cell.form == "letter" for cell in found)


def test_other_seeds_draw_other_scenes():
    first, again, other = (lookups.draw(2, seed) for seed in (0, 0, 1))
    assert [each.prompt for each in first] == [each.prompt for each in again] != [each.prompt for each in other]


def test_the_command_prints_a_row_for_each_family(tiny_checkpoint, call, capsys):
    call(lookups.main, tiny_checkpoint("norm-gwc"), "--scenes", "3")
    printed = capsys.readouterr().out
    assert "image, letter" in printed and "exists" in printed and "(3)" in printed
