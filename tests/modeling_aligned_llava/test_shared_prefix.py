"""Which rows share what (against all ways to cut them), and that sharing changes no number."""

import itertools
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, Gemma3ForCausalLM, Gemma3TextConfig, MambaConfig, MambaForCausalLM

from modeling_aligned_llava.shared_prefix import Segment, SharedPrefix, can_share, common_length, pack, plan, positions


def random_rows(seed):
    numbers = random.Random(seed)
    rows = [[numbers.randrange(2) for _ in range(numbers.randrange(3, 8))] for _ in range(7)]
    groups = [numbers.choice("ab") for _ in rows]
    return rows, groups, [(numbers.randrange(3), len(row) - 1) for row in rows]


def shared_tokens(rows, ranges, members):
    """What a segment of these rows can share, 0 if that is less than one of them needs."""
    shared = min(ranges[row][1] for row in members)
    for first, second in itertools.pairwise(members):
        shared = min(shared, common_length(rows[first], rows[second]))
    return shared if shared >= max(ranges[row][0] for row in members) else 0


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("most", [1, 3, 7])
def test_plan_saves_as_much_as_any_cut(seed, most):
    rows, groups, ranges = random_rows(seed)
    segments = plan(rows, groups, ranges, most)
    assert sorted(row for segment in segments for row in segment.rows) == list(range(len(rows)))
    for segment in segments:
        assert len(segment.rows) <= most and len({groups[row] for row in segment.rows}) == 1
        assert segment.shared == (shared_tokens(rows, ranges, segment.rows) if len(segment.rows) > 1 else 0)
    order = sorted(range(len(rows)), key=lambda row: (groups[row], rows[row]))
    best = 0
    for cuts in itertools.product([False, True], repeat=len(order) - 1):
        edges = [0, *(i + 1 for i, cut in enumerate(cuts) if cut), len(order)]
        parts = [order[a:b] for a, b in itertools.pairwise(edges)]
        if all(len(part) <= most and len({groups[row] for row in part}) == 1 for part in parts):
            best = max(best, sum((len(part) - 1) * shared_tokens(rows, ranges, part) for part in parts))
    assert sum((len(segment.rows) - 1) * segment.shared for segment in segments) == best


def test_pack_keeps_every_row_once_and_the_limit():
    segments = [Segment((0, 1, 2), 5), Segment((3,), 0), Segment((4, 5), 9), Segment((6,), 0), Segment((7, 8), 2)]
    batches = pack(segments, [10] * 9, 4)
    assert sorted(row for batch in batches for segment in batch for row in segment.rows) == list(range(9))
    assert all(sum(len(segment.rows) for segment in batch) <= 4 for batch in batches)
    assert all(len({segment.shared > 0 for segment in batch}) == 1 for batch in batches)


def test_logits_behind_a_shared_prefix_are_those_of_the_row_alone(tiny_backbones):
    model = AutoModelForCausalLM.from_pretrained(tiny_backbones.qwen2, dtype=torch.float64).eval()
    rows = [[5, 6, 7, 8, 9], [5, 6, 7, 1], [20, 21, 22, 23, 24, 25, 30], [20, 21, 22, 23, 24, 25, 31, 32, 33]]
    batch = [Segment((0, 1), 3), Segment((2, 3), 6)]
    assert can_share(model)
    with torch.no_grad():
        shared = SharedPrefix.build(model, rows, batch, pad=0)
        logits = model(
            shared.ids[:, shared.cached :],
            attention_mask=shared.mask,
            position_ids=positions(shared.mask)[:, shared.cached :],
            past_key_values=shared.cache,
        ).logits
        for found, row in zip(logits, rows, strict=True):
            alone = model(torch.tensor([row])).logits[0]
            torch.testing.assert_close(found[-1], alone[-1], rtol=0, atol=1e-12)


def test_windows_and_recurrent_states_cannot_be_shared():
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    gemma = Gemma3TextConfig(**sizes, intermediate_size=32, num_attention_heads=2, head_dim=16, sliding_window=8)
    assert not can_share(Gemma3ForCausalLM(gemma))
    assert not can_share(MambaForCausalLM(MambaConfig(**sizes)))
