"""Which rows share what, against all ways to cut them, and which rows are answered together."""

import itertools
import random

import pytest

from modeling_aligned_llava.inference.prefix_plan import Segment, common_length, pack, plan


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


def test_pack_keeps_every_row_once_and_the_limits():
    segments = [Segment((0, 1, 2), 5), Segment((3,), 0), Segment((4, 5), 9), Segment((6,), 0), Segment((7, 8), 2)]
    for tokens in (None, 30, 5):
        batches = pack(segments, [10] * 9, 4, tokens)
        assert sorted(row for batch in batches for segment in batch for row in segment.rows) == list(range(9))
        assert all(sum(len(segment.rows) for segment in batch) <= 4 for batch in batches)
    assert [len(batch) for batch in pack(segments, [10] * 9, 4, 5)] == [1] * 5
    assert pack(segments, [10] * 9, 4, 30) == [
        [Segment((0, 1, 2), 5), Segment((3,), 0)],
        [Segment((4, 5), 9), Segment((6,), 0)],
        [Segment((7, 8), 2)],
    ]
