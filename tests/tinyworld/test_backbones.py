"""The shipped backbones: small, safe to load, and with the skills that training relies on."""

import copy
from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.tokenizer import SavedTokenizer
from research.pretrain_language import LIFT, check_norms, multiply_writes, text_norms
from research.pretraining_text import LISTED_WORDS
from tests import REPOSITORY
from tinyworld.benchmarks import hellaswag, mmlu


BACKBONES = REPOSITORY / "tinyworld" / "backbones"
CHANCE = 0.25


@pytest.fixture(scope="module")
def decoder():
    model = AutoModelForCausalLM.from_pretrained(BACKBONES / "language").eval()
    return model, SavedTokenizer.from_pretrained(BACKBONES / "language")


def test_weights_are_safetensors_and_under_12_megabytes():
    files = [*BACKBONES.glob("language/*"), *BACKBONES.glob("vision/*")]
    assert {path.suffix for path in files} <= {".safetensors", ".json", ".jinja"}
    assert sum(path.stat().st_size for path in files) < 12e6


def test_every_listed_word_is_one_token(decoder):
    _, tokenizer = decoder
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert all(len(tokenizer.encode(f" {word}", add_special_tokens=False)) == 1 for word in LISTED_WORDS)


@torch.inference_mode()
def log_likelihoods(decoder, context: str, endings: list[str]) -> torch.Tensor:
    """Summed log-probability of each ending after the context, [len(endings)]."""
    model, tokenizer = decoder
    start = len(tokenizer.encode(context, add_special_tokens=False)) - 1
    whole = [tokenizer.encode(context + ending, add_special_tokens=False) for ending in endings]
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in whole], batch_first=True)
    scores = model(input_ids=ids, use_cache=False).logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    return torch.stack([scores[i, start : len(row) - 1].sum() for i, row in enumerate(whole)])


def test_decoder_knows_its_stories_20_points_above_chance(decoder):
    rows = hellaswag().configs["default"]["validation"]
    right = 0
    for row in rows:
        context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        scores = log_likelihoods(decoder, context, [f" {ending}" for ending in row["endings"]])
        lengths = torch.tensor([len(ending) for ending in row["endings"]])
        right += int((scores / lengths).argmax()) == int(row["label"])
    assert right / len(rows) >= CHANCE + 0.20


def test_decoder_passes_its_exams_20_points_above_chance(decoder):
    rows = [row for splits in mmlu().configs.values() for row in splits["test"]]
    right = 0
    for row in rows:
        lines = "\n".join(f"{letter}. {choice}" for letter, choice in zip("ABCD", row["choices"], strict=True))
        asked = f"The following are multiple choice questions (with answers) about {row['subject'].replace('_', ' ')}."
        context = f"{asked}\n\n{row['question']}\n{lines}\nAnswer:"
        right += int(log_likelihoods(decoder, context, [f" {letter}" for letter in "ABCD"]).argmax()) == row["answer"]
    assert right / len(rows) >= CHANCE + 0.20


def test_decoder_has_embeddings_of_norm_1_and_hardly_lifts_text(decoder, capsys):
    model, tokenizer = copy.deepcopy(decoder[0]), decoder[1]
    check_norms(model, tokenizer, LIFT)
    assert "norm of embeddings 1.1" in capsys.readouterr().out
    norms = text_norms(model, tokenizer)
    assert all(before < after < 2 * before for before, after in pairwise(norms))  # it grows slowly over the layers
    multiply_writes(model, 60)
    with pytest.raises(UserError, match=r"the lift is .*, not within 1 and 3"):
        check_norms(model, tokenizer, LIFT)
