"""The lmms-eval adapter on a stock LLaVA, driven the way lmms-eval drives it."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.lmms_eval_model import AlignedLlava
from modeling_aligned_llava.inference.generator import CONTROL_CHARACTERS, Generator, load_generator
from modeling_aligned_llava.inference.image_slots import ImageSlots
from modeling_aligned_llava.inference.memory import Budget
from modeling_aligned_llava.inference.prefix_tree import PrefixTree
from tests.benchmark_stand_in import mixed_rows
from tests.modeling_aligned_llava.tiny_families import write_checkpoint


ROWS = mixed_rows(18)
OPTIONS = {"until": ["\n\n"], "max_new_tokens": 6, "do_sample": False, "temperature": 0}


def requests(rows=ROWS, options=OPTIONS):
    return [
        SimpleNamespace(args=(text, options, lambda document: rows[document][1], index, "task", "test"))
        for index, (text, _) in enumerate(rows)
    ]


def adapter(folder, rows=ROWS, **arguments):
    model = AlignedLlava(str(folder), dtype="float32", progress=lambda rows: None, **arguments)
    model.task_dict = {"task": {"test": range(len(rows))}}
    return model


def recorded(monkeypatch, owner, name, see=lambda *arguments, **options: None):
    """A list that grows with every call of `owner.name`, by what `see` makes of its arguments."""
    seen, function = [], getattr(owner, name)

    def call(*arguments, **options):
        seen.append(see(*arguments, **options))
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, call)
    return seen


def rows_in(batch):
    return sum(len(segment.rows) for segment in batch)


@pytest.fixture(scope="module")
def answers(tiny_llava):
    found = adapter(tiny_llava, batch_size=1).generate_until(requests())
    assert all(found) and len(set(found)) > len(found) // 2  # they say something and differ
    return found


@pytest.mark.parametrize("budget", [Budget(100, 1), Budget(100, 40)])
def test_answers_do_not_depend_on_the_batches_and_the_passes(tiny_llava, answers, monkeypatch, budget):
    model = adapter(tiny_llava, batch_size=16)
    monkeypatch.setattr(model, "_budget", budget)
    monkeypatch.setattr(model._generator.tree, "budget", budget)
    assert model.generate_until(requests()) == answers


def test_answers_are_the_models_own_greedy_ones(tiny_llava, answers):
    """Against a plain loop of argmax over the forward pass, whatever the checkpoint's generation config asks."""
    generator = load_generator(str(tiny_llava), "float32")
    processor, model = generator.processor, generator.model
    text, images = ROWS[1]
    inputs = processor(text=generator.render(text, 1), images=images, return_tensors="pt", add_special_tokens=False)
    ids = inputs.pop("input_ids")
    start = ids.shape[1]
    while ids.shape[1] < start + 6 and ids[0, -1] != processor.tokenizer.eos_token_id:
        with torch.no_grad():
            logits = model(input_ids=ids, pixel_values=inputs["pixel_values"]).logits
        ids = torch.cat([ids, logits[:, -1:].argmax(-1)], dim=1)
    expected = CONTROL_CHARACTERS.sub("", processor.decode(ids[0, start:], skip_special_tokens=True))
    assert answers[1] == expected.split("\n\n")[0]


def test_a_killed_run_continues_with_whole_batches(tiny_llava, tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    sizes = recorded(monkeypatch, Generator, "answer_shared", lambda _, prompts, rows, batch, *more: rows_in(batch))
    straight = adapter(tiny_llava, batch_size=4, answer_log=str(log)).generate_until(requests())
    first, second, third, *rest = sizes
    whole = first + second
    assert sum(sizes) == len(ROWS) and third > 1
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[: whole + 1]) + lines[whole + 1][:20])  # whole batches, a part, and a torn line

    sizes.clear()
    model = adapter(tiny_llava, batch_size=4, answer_log=str(log))
    assert model.generate_until(requests()) == straight
    assert sizes == [third, *rest]
    assert model.generate_until(requests()) == straight
    assert sizes == [third, *rest]


def test_questions_about_one_image_are_prefilled_once(tiny_llava, monkeypatch):
    single_images = [images for _, images in ROWS if len(images) == 1][:3]
    rows = [(f"question {i} about it?", images) for images in single_images for i in range(5)] + list(ROWS)
    tower = type(load_generator(str(tiny_llava), "float32").model.model.vision_tower)
    seen = recorded(monkeypatch, tower, "forward", lambda _, pixel_values, **options: len(pixel_values))

    def ask(**arguments):
        seen.clear()
        return adapter(tiny_llava, rows, **arguments).generate_until(requests(rows)), sum(seen)

    plain, opened = ask(batch_size=8, shared_prefix=False)
    assert opened == sum(len(images) for _, images in rows)
    for batch_size in (5, 16):
        shared, fewer = ask(batch_size=batch_size)
        assert shared == plain and fewer < opened
    assert ask(batch_size=1) == (plain, opened)


def test_images_are_those_of_the_rows_of_this_run(tiny_llava, tmp_path):
    """The log keeps the answers of earlier runs, in which the documents had other images."""
    log = str(tmp_path / "log.jsonl")
    first = adapter(tiny_llava, batch_size=4, answer_log=log)
    first.generate_until(requests())
    other = ROWS[:1] * len(ROWS)
    changed = adapter(tiny_llava, batch_size=4, answer_log=log)
    changed.generate_until(requests(other))
    again = adapter(tiny_llava, batch_size=4, answer_log=log)
    again.generate_until(requests())
    assert set(again.images) == set(range(len(ROWS))) and again.images == first.images
    assert set(changed.images.values()) == {first.images[0]} and changed.images != first.images
    again.generate_until(requests()[:3])
    assert set(again.images) == {0, 1, 2}


def test_blank_images_change_answers_with_images_only(tiny_llava, tmp_path, answers):
    log = str(tmp_path / "log.jsonl")
    adapter(tiny_llava, batch_size=4, answer_log=log).generate_until(requests())
    blank = adapter(tiny_llava, batch_size=4, answer_log=log, blank_images=True).generate_until(requests())
    changed = [blank[index] != answers[index] for index in range(len(ROWS))]
    assert any(changed)
    assert not any(changed[index] for index, (_, images) in enumerate(ROWS) if not images)


def test_the_limit_of_the_command_line_wins(tiny_llava, answers):
    short = adapter(tiny_llava, batch_size=4, max_new_tokens=1).generate_until(requests())
    assert max(map(len, short)) == 1 < max(map(len, answers))


@pytest.mark.parametrize("shared", [True, False])
def test_a_stop_string_ends_decoding_at_once(tiny_llava, answers, monkeypatch, shared):
    stop = answers[0][1]
    stopped = requests(options=OPTIONS | {"until": stop})
    model = adapter(tiny_llava, batch_size=18, shared_prefix=shared)
    steps = []
    decoder = type(model._generator.model.get_decoder())
    forward = decoder.forward

    def counted(self, *arguments, **inputs):
        found = forward(self, *arguments, **inputs)
        steps.append(found.last_hidden_state.shape[:2].numel())
        return found

    monkeypatch.setattr(decoder, "forward", counted)
    for rows, longest in (([0], 2), (range(len(ROWS)), None)):
        steps.clear()
        asked = [stopped[row] for row in rows]
        found = model.generate_until(asked)
        assert found == [answers[row].split(stop)[0] for row in rows]
        if longest:
            assert len(steps) == longest  # the prompt gives the first token, one more step the stop string
        elif shared:  # rows that have ended leave the batch
            assert sum(size < len(ROWS) for size in steps) and steps[-1] < len(ROWS)


def test_a_batch_that_does_not_fit_is_halved(tiny_llava, answers, monkeypatch, tmp_path):
    sizes = []
    read = PrefixTree.read

    def short_of_memory(self, rows, batch, *arguments, **options):
        sizes.append(rows_in(batch))
        if sizes[-1] > 5:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return read(self, rows, batch, *arguments, **options)

    monkeypatch.setattr(PrefixTree, "read", short_of_memory)
    log = str(tmp_path / "log.jsonl")
    model = adapter(tiny_llava, batch_size=16, answer_log=log)
    assert model.generate_until(requests()) == answers
    assert max(sizes) > 5 and sum(size for size in sizes if size <= 5) == len(ROWS)
    sizes.clear()
    assert adapter(tiny_llava, batch_size=16, answer_log=log).generate_until(requests()) == answers
    assert not sizes


def test_a_task_without_a_limit_gets_that_of_lmms_eval_for_the_family(tiny_llava, monkeypatch):
    model = adapter(tiny_llava)
    for family, limit in (("llava", 1024), ("qwen3_vl", 128), ("glm4v", 8192), ("unheard_of", 4096)):
        monkeypatch.setattr(model._generator.model.config, "model_type", family)
        assert json.loads(model._settings({}))["max_new_tokens"] == limit
        assert json.loads(model._settings({"max_new_tokens": 16}))["max_new_tokens"] == 16


def test_images_have_the_size_of_lmms_eval_for_the_family(tmp_path):
    own = adapter(write_checkpoint("qwen2_5_vl", tmp_path / "tiny"))._generator
    assert own.system_prompt is None  # the chat template writes it
    sizes = own.tokenize([own.render("a", 1)] * 2, [[(28, 28)], [(4000, 3000)]])
    tokens = [row.count(own.processor.image_token_id) for row in sizes]
    patches = own.processor.image_processor.patch_size**2 * 4
    assert tokens[0] == pytest.approx(256 * 28 * 28 / patches, rel=0.1)
    assert tokens[1] == pytest.approx(1_605_632 / patches, rel=0.1)
    assert adapter(write_checkpoint("qwen3_vl", tmp_path / "three"))._generator.system_prompt.startswith("You are")


def test_a_processor_that_tells_no_visual_tokens_gets_left_padded_batches(tmp_path, monkeypatch):
    answers = adapter(write_checkpoint("llava_next", tmp_path / "told"), batch_size=16).generate_until(requests())
    shutil.copytree(tmp_path / "told", tmp_path / "silent")  # loaded afresh

    def silent(self, sizes):
        raise UserError("its processor does not tell the visual tokens of an image")

    monkeypatch.setattr(ImageSlots, "written", silent)
    model = adapter(tmp_path / "silent", batch_size=16)
    assert model._generator.tree is None and model.generate_until(requests()) == answers


def test_settings_that_are_not_greedy_are_refused(tiny_llava):
    for unserved in ({"do_sample": True}, {"temperature": 0.7}, {"num_beams": 3}, {"repetition_penalty": 1.2}):
        with pytest.raises(ValueError, match="greedily"):
            adapter(tiny_llava).generate_until(requests(options=OPTIONS | unserved))


@pytest.mark.parametrize("shared", [True, False])
def test_an_answer_without_finite_logits_is_an_error(overflowing, shared):
    half = AlignedLlava(str(overflowing), dtype="float16", shared_prefix=shared, progress=lambda rows: None)
    half.task_dict = {"task": {"test": range(len(ROWS))}}
    with pytest.raises(UserError, match="logits are not finite in float16, so it has no answer to "):
        half.generate_until(requests())
    assert adapter(overflowing, shared_prefix=shared).generate_until(requests())
