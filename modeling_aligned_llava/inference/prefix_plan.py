"""Plan which rows share a prefix, so that a model reads it once: questions about one image, few-shot blocks, endings.

`plan` cuts the rows into segments and `pack` puts segments into batches, which `prefix_tree.py` reads.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Segment:
    """Rows (indices) that share their first `shared` tokens."""

    rows: tuple[int, ...]
    shared: int


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def plan(
    rows: Sequence[Sequence[int]], groups: Sequence[Any], ranges: Sequence[tuple[int, int]], max_rows: int
) -> list[Segment]:
    """Cut the rows, in sorted order, into segments so that as few tokens as possible are computed twice.

    Args:
        rows: token ids of each row.
        groups: rows share only within a group, for example the digest of their images.
        ranges: (least, most) tokens of its prefix that a row can share: all its images must be among them, and its
            last token must not.
        max_rows: rows in a segment at most.
    """
    # 1) Sort, so that rows with a common prefix are neighbours.
    order = sorted(range(len(rows)), key=lambda index: (str(groups[index]), rows[index]))
    common = [
        common_length(rows[first], rows[second]) if groups[first] == groups[second] else 0
        for first, second in itertools.pairwise(order)
    ]

    # 2) Dynamic programme over the sorted rows: the most tokens that the first `end` rows can save.
    saved = [0] * (len(order) + 1)
    last_segment = [(0, 0)] * (len(order) + 1)  # where the last segment of the first `end` rows starts, what it shares
    for end in range(1, len(order) + 1):
        saved[end], last_segment[end] = saved[end - 1], (end - 1, 0)  # the row alone
        least, shared = ranges[order[end - 1]]
        for start in range(end - 2, max(-1, end - 1 - max_rows), -1):
            row = order[start]
            least = max(least, ranges[row][0])
            shared = min(shared, ranges[row][1], common[start])
            if shared < max(least, 1):
                break
            total = saved[start] + (end - 1 - start) * shared
            if total > saved[end]:
                saved[end], last_segment[end] = total, (start, shared)

    # 3) Walk back through the best segments.
    segments = []
    end = len(order)
    while end:
        start, shared = last_segment[end]
        segments.append(Segment(tuple(order[start:end]), shared))
        end = start
    return segments[::-1]


def pack(
    segments: list[Segment],
    lengths: Sequence[int],
    max_rows: int,
    max_tokens: int | None = None,
    padded: bool = False,
) -> list[list[Segment]]:
    """Put segments into batches, the longest first, within `max_rows` rows and `max_tokens` tokens a batch.

    A segment that exceeds `max_tokens` is a batch of its own.

    Args:
        lengths: tokens of each row.
        padded: every row of a batch takes as many tokens as its longest; no segment shares anything.
    """
    batches: list[list[Segment]] = []
    free_rows, free_tokens, width = 0, 0.0, 0
    for segment in sorted(segments, key=lambda segment: (-max(lengths[row] for row in segment.rows), segment.rows)):
        unpadded = segment.shared + sum(lengths[row] - segment.shared for row in segment.rows)
        size = width if padded else unpadded
        if len(segment.rows) > free_rows or size > free_tokens:
            batches.append([])
            free_rows, free_tokens = max_rows, float("inf") if max_tokens is None else max_tokens
            width = size = unpadded
        batches[-1].append(segment)
        free_rows -= len(segment.rows)
        free_tokens -= size
    return batches
