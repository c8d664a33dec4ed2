"""The demo's models: streamed answers, attention, norms, and the command line."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
from PIL import Image

from eval.demo import __main__ as command
from eval.demo import markup
from eval.demo.measurements import SIDE, norm_figure, norms, overlay, word_attention
from eval.demo.models import Answer, load_models
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.measure.profile import profile
from modeling_aligned_llava.diagnostics.measure.verdict import verdict
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS
from tests.benchmark_stand_in import image_of


ASKED = ImageQuestion("box", lambda: image_of(3), "What colour is the box?")


@pytest.fixture(scope="module")
def model(tiny_llava):
    (loaded,) = load_models({"tiny": str(tiny_llava)}, "cpu")
    return loaded


def test_the_answer_grows_into_the_one_that_evaluation_gives(model):
    seen = list(model.stream(ASKED, 12))
    assert len(seen) > 2 and all(later.text.startswith(earlier.text) for earlier, later in pairwise(seen[:-1]))
    prompt = model.generator.render(ASKED.question, images=1)
    (whole,) = model.generator.answer([prompt], [[ASKED.open()]], max_new_tokens=12)
    assert CONTROL_CHARACTERS.sub("", seen[-1].text) == whole and len(seen[-1].ids) == 12


def test_an_error_reaches_the_reader_and_the_next_question_is_answered(model):
    def unreadable():
        raise UserError("the image is gone")

    with pytest.raises(UserError, match="the image is gone"):
        list(model.stream(replace(ASKED, open=unreadable), 12))
    assert list(model.stream(ASKED, 2))[-1].ids


def test_closing_the_stream_ends_the_generation(model, monkeypatch):
    lengths, network = [], model.generator.model
    generate = network.generate
    monkeypatch.setattr(network, "generate", lambda **given: lengths.append(generate(**given)) or lengths[-1])
    growing = model.stream(ASKED, 1500)
    next(growing)
    growing.close()
    assert lengths[0].shape[1] < 1500 and not model.lock.locked()


def test_words_know_their_first_token(model):
    ids = tuple(model.generator.processor.tokenizer("red  square").input_ids)
    assert model.words(Answer(ASKED, "red  square", ids)) == [("red", 0), ("square", 5)]
    assert model.words(Answer(ASKED, "", ())) == []


def test_attention_of_a_word_is_that_of_the_position_before_it(model):
    answer = list(model.stream(ASKED, 6))[-1]
    seen = word_attention(model, answer, 3)
    inputs = model.inputs(ASKED)
    ids = torch.cat([inputs["input_ids"], torch.tensor([answer.ids[:3]])], 1)
    network = model.generator.model
    network.set_attn_implementation("eager")
    seeing = {"input_ids": ids, "pixel_values": inputs["pixel_values"]}
    with torch.inference_mode():
        weights = network(**seeing, output_attentions=True, use_cache=False).attentions
    network.set_attn_implementation("sdpa")
    visual = ids[0] == network.config.image_token_id
    on_image = torch.stack([layer[0, :, -1, visual] for layer in weights])  # (layers, heads, visual tokens)
    assert seen.share == pytest.approx(on_image.sum(-1).mean().item(), rel=1e-5)
    within = on_image / on_image.sum(-1, keepdim=True)
    torch.testing.assert_close(seen.map.flatten().float(), within.mean((0, 1)), rtol=1e-4, atol=1e-6)
    assert word_attention(model, answer, 0).share != seen.share


def test_the_brightest_cell_of_the_overlay_has_the_most_attention():
    white = ImageQuestion("white", lambda: Image.new("RGB", (30, 20), "white"))
    drawn = overlay(white, torch.tensor([[0.1, 0.1], [0.7, 0.1]]))
    assert drawn.size == (SIDE, round(SIDE * 20 / 30))
    assert drawn.getpixel((0, drawn.height - 1)) == (255, 255, 255)
    assert max(drawn.getpixel((drawn.width - 1, 0))) < 100


def test_norms_are_those_of_the_profile_command(model, tiny_llava):
    measured, expected = norms(model, ASKED), profile(str(tiny_llava), [ASKED])
    for where in ("visual tokens at layer 0", "text embeddings"):
        assert measured["norms"][where]["mean"] == pytest.approx(expected["norms"][where]["mean"], rel=1e-5)
    profiles = {"<b>tiny": measured, "again": measured}
    page = markup.norms(norm_figure(profiles), profiles)
    assert "&lt;b&gt;tiny" in page and "<b>" not in page and f"<td>{measured['ratio']:.2f}</td>" in page
    assert f"<p>again, on this image: {verdict(measured)['summary']}.</p>" in page


def test_answers_are_escaped():
    page = markup.figure(Image.new("RGB", (4, 4)), '"><img src=x>', "![a](http://example.org/a.png) <script>")
    assert page.count("<img") == 1 and "<script>" not in page and "&lt;script&gt;" in page


def test_the_command_line_names_the_culprit(tiny_llava, tmp_path, refusal, monkeypatch):
    message = partial(refusal, command.main)
    monkeypatch.setattr(command, "RUN", tmp_path / "absent")
    assert "bash eval/run_all.sh" in message() and "--models" in message()
    good = [f"m{number}={tiny_llava}" for number in range(4)]
    assert "4 given, at most 3" in message("--models", *good)
    assert "given twice" in message("--models", good[0], good[0])
    assert "expected NAME=PATH" in message("--models", tiny_llava)
    assert "--examples" not in message("--models", "a=/nowhere") and "/nowhere" in message("--models", "a=/nowhere")
    assert "--max-new-tokens 0" in message("--models", good[0], "--max-new-tokens", 0)
    assert "no image in" in message("--models", good[0], "--examples", tiny_llava)
