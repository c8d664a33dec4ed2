"""Rows read as one tree give the logits of each row alone, however the tree is cut into passes."""

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, MambaConfig, MambaForCausalLM

from modeling_aligned_llava.inference.decoder_input import NoSharedPrefix
from modeling_aligned_llava.inference.memory import Budget
from modeling_aligned_llava.inference.prefix_plan import Segment
from modeling_aligned_llava.inference.prefix_tree import ATTENTION, PrefixTree, check_decoder


ROWS = [[5, 6, 7, 8, 9], [5, 6, 7, 1], [20, 21, 22, 23, 24, 25, 30], [20, 21, 22, 23, 24, 25, 31, 32, 33], [40, 41]]
BATCH = [Segment((2, 3), 6), Segment((0, 1), 3), Segment((4,), 0)]
MEMBERS = [2, 3, 0, 1, 4]


@pytest.fixture(params=ATTENTION)
def decoder(request, tiny_backbones):
    model = AutoModelForCausalLM.from_pretrained(
        tiny_backbones.qwen2, dtype=torch.float64, attn_implementation=request.param
    ).eval()
    check_decoder(model)
    return model


def assert_as_alone(model, row, logits):
    expected = model(torch.tensor([row])).logits[0, -len(logits) :]
    tolerance = 1e-7 if model.config._attn_implementation == "eager" else 1e-12  # eager softmax is in float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("size", [1, 8, 1024])
@torch.inference_mode()
def test_logits_are_those_of_each_row_alone(decoder, size):
    tree = PrefixTree(decoder)
    tree.budget = Budget(1024, size)
    kept = dict(enumerate([2, 1, 1, 3, 2]))
    for _ in range(2):  # the buffers are used again
        for row, logits in zip(MEMBERS, tree.read(ROWS, BATCH, kept), strict=True):
            assert len(logits) == kept[row]
            assert_as_alone(decoder, ROWS[row], logits)


@torch.inference_mode()
def test_answers_grow_row_by_row_and_the_buffers_with_them(decoder):
    tree = PrefixTree(decoder)
    list(tree.read(ROWS, BATCH, dict.fromkeys(MEMBERS, 1)))
    assert tree.capacity == tree.length == 18  # nothing is reserved for the answers
    grown = {row: list(ROWS[row]) for row in MEMBERS}
    for rows, tokens in (([2, 3, 0, 1, 4], [50, 51, 52, 53, 54]), ([3, 4], [60, 61]), ([3], [62])):
        logits = tree.append(rows, tokens)
        for row, token, row_logits in zip(rows, tokens, logits, strict=True):
            grown[row].append(token)
            assert_as_alone(decoder, grown[row], row_logits[None])
    assert tree.capacity == 2 * (18 + 5)
    for token in range(70, 90):  # the columns of rows that have ended make room
        (row_logits,) = tree.append([3], [token])
        grown[3].append(token)
        assert_as_alone(decoder, grown[3], row_logits[None])
    assert tree.capacity == 2 * (18 + 5)


def test_windows_and_recurrent_states_cannot_be_read_as_trees():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    gemma = Gemma3TextConfig(**sizes, intermediate_size=32, num_attention_heads=2, head_dim=16, sliding_window=8)
    for model in (Gemma3ForCausalLM(gemma), MambaForCausalLM(MambaConfig(**sizes))):
        with pytest.raises(NoSharedPrefix, match="does not keep the keys and values of every token"):
            check_decoder(model)
