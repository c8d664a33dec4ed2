"""The lm-eval model: log-likelihoods of a plain forward pass, whatever is shared, and nothing scored twice."""

import random
from functools import partial

import pytest
import torch
from lm_eval.models.huggingface import HFLM
from transformers import Gemma2Config, LlamaConfig

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from modeling_aligned_llava.inference.memory import Budget
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import recorded
from tests.modeling_aligned_llava.tiny_families import write_checkpoint
from tests.modeling_aligned_llava.tiny_parts import IMAGE, TEXT, clip, clip_llava, model_of


def requests():
    """Few-shot blocks with one-token answers, contexts with several endings, a lone row, one request twice."""
    numbers = random.Random(0)

    def tokens(length):
        return [numbers.randrange(5, 250) for _ in range(length)]

    block = tokens(40)
    asked = []
    for _ in range(5):
        question = block + tokens(numbers.randrange(3, 9))
        asked += [(question, [letter]) for letter in (65, 66, 67, 68)]
    for _ in range(4):
        context = tokens(numbers.randrange(4, 20))
        asked += [(context, tokens(numbers.randrange(1, 7))) for _ in range(4)]
    asked += [(tokens(9), tokens(2)), asked[0]]
    numbers.shuffle(asked)
    return [((str(index), ""), context, continuation) for index, (context, continuation) in enumerate(asked)]


def model(folder, **arguments):
    return AlignedLlavaLM(str(folder), dtype="float32", device="cpu", progress=lambda done: None, **arguments)


@pytest.fixture(scope="module")
def expected(tiny_checkpoint):
    network = model(tiny_checkpoint("norm-gwc")).model
    scores = []
    with torch.no_grad():
        for _, context, continuation in requests():
            logits = network(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1].double()
            target = torch.tensor(continuation)
            value = logits.log_softmax(-1)[range(len(target)), target].sum().item()
            scores.append((value, bool((logits.argmax(-1) == target).all())))
    return scores


def assert_scores(ours, expected):
    for (value, greedy), (true_value, true_greedy) in zip(
        ours._loglikelihood_tokens(requests()), expected, strict=True
    ):
        assert abs(value - true_value) < 1e-4 and greedy == true_greedy


@pytest.mark.parametrize("batch_size", [1, 4, 16])
@pytest.mark.parametrize("shared", [True, False])
def test_log_likelihoods_are_those_of_a_plain_forward_pass(tiny_checkpoint, expected, batch_size, shared):
    assert_scores(model(tiny_checkpoint("norm-gwc"), batch_size=batch_size, shared_prefix=shared), expected)


def test_a_long_context_is_cut_from_the_left_as_lm_eval_does(tiny_checkpoint):
    ours = model(tiny_checkpoint("norm-gwc"), batch_size=4, max_length=32)
    stock = HFLM(pretrained=ours.model, tokenizer=ours.tokenizer, backend="causal", batch_size=4, max_length=32)
    assert_scores(ours, stock._loglikelihood_tokens(requests(), disable_tqdm=True))


def test_a_killed_run_scores_the_rest_only(tiny_checkpoint, tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    straight = model(tiny_checkpoint("norm"), batch_size=4, answer_log=str(log))._loglikelihood_tokens(requests())
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:20]) + lines[20][:9])
    scored = recorded(monkeypatch, AlignedLlavaLM, "_score", lambda _, rows, tails, batch: len(batch))
    again = model(tiny_checkpoint("norm"), batch_size=4, answer_log=str(log))
    assert again._loglikelihood_tokens(requests()) == straight
    assert 0 < sum(scored) < len(requests()) - 4
    scored.clear()
    assert again._loglikelihood_tokens(requests()) == straight and not scored
    other = model(tiny_checkpoint("baseline"), batch_size=4, answer_log=str(log))
    other._loglikelihood_tokens(requests())
    assert scored


def test_padded_batches_keep_no_cache_and_fit_the_budget(tiny_checkpoint, expected, monkeypatch):
    ours = model(tiny_checkpoint("norm-gwc"), batch_size=16, shared_prefix=False)
    monkeypatch.setattr(ours, "_budget", Budget(100, 100))

    def size(_, input_ids, **options):
        assert options["use_cache"] is False
        return input_ids.numel()

    sizes = recorded(monkeypatch, type(ours.model), "forward", size)
    assert_scores(ours, expected)
    assert 50 < max(sizes) <= 100


def test_what_cannot_be_scored_is_an_error(tiny_checkpoint):
    with pytest.raises(ValueError, match="request 0: 3 and 0 tokens cannot be scored"):
        model(tiny_checkpoint("norm"))._loglikelihood_tokens([(("a", ""), [5, 6, 7], [])])


def test_a_score_that_is_no_number_is_an_error(tiny_llava, overflowing):
    """In float16 alone: no score, and nothing in the log."""
    asked = [(("Why", " not"), [5, 6, 7], [8])]
    (score,) = model(overflowing)._loglikelihood_tokens(asked)
    assert score[0] < 0
    log = overflowing.parent / "log.jsonl"
    half = AlignedLlavaLM(str(overflowing), dtype="float16", device="cpu", answer_log=str(log))
    with pytest.raises(UserError, match=r"not finite in float16, .* no answer to 'Why not': choose --dtype bfloat16"):
        half._loglikelihood_tokens(asked)
    assert log.read_bytes() == b""
    with pytest.raises(UserError, match="not finite in float16"):
        half._model_generate(torch.tensor([[5, 6]]), max_length=4, stop=[])


@pytest.mark.parametrize("setting", ["peft", "mixed_precision_dtype", "think_end_token", "revision"])
def test_a_setting_without_effect_is_refused(tiny_llava, setting):
    with pytest.raises(UserError, match=f"takes no {setting}"):
        model(tiny_llava, **{setting: "x"})


def test_a_gemma_decoder_gets_its_first_token_inside_any_model(tmp_path):
    """lm-eval looks for "gemma" in the name of the whole model."""
    for decoder in (Gemma2Config, LlamaConfig):
        build = partial(model_of, "Llava", clip(), decoder(**TEXT), image_token_index=IMAGE)
        folder = write_checkpoint(lambda build=build: (build(), clip_llava()), tmp_path / decoder.__name__)
        assert bool(model(folder).add_bos_token) is (decoder is Gemma2Config)
