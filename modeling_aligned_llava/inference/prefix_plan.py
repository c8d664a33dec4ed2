"""Which rows begin alike, so that a network need read it once: questions about one image, few-shot blocks, endings.

`plan` cuts the rows into segments, `pack` puts segments into batches; `token_tree.py` reads them.
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
    """Length of the common prefix."""
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def plan(
    rows: Sequence[Sequence[int]], groups: Sequence[Any], ranges: Sequence[tuple[int, int]], most: int
) -> list[Segment]:
    """Cut the rows, in sorted order, into segments so that as few tokens as possible are computed twice.

    Args:
        rows: token ids of each row.
        groups: rows share only within a group, e.g. the digest of their images.
        ranges: (least, most) tokens from its beginning that a row can share: all its images must be among them, its
            last token must not.
        most: rows a segment at most.
    """
    order = sorted(range(len(rows)), key=lambda index: (str(groups[index]), rows[index]))
    alike = [
        common_length(rows[first], rows[second]) if groups[first] == groups[second] else 0
        for first, second in itertools.pairwise(order)
    ]
    saved = [0] * (len(order) + 1)  # of the first i rows in order, in tokens
    cut = [(0, 0)] * (len(order) + 1)  # where the last segment of the first i rows begins, and what it shares
    for end in range(1, len(order) + 1):
        last = order[end - 1]
        best, cut[end] = saved[end - 1], (end - 1, 0)
        least, shared = ranges[last]
        for start in range(end - 2, max(-1, end - 1 - most), -1):
            row = order[start]
            least = max(least, ranges[row][0])
            shared = min(shared, ranges[row][1], alike[start])
            if shared < max(least, 1):
                break
            gain = saved[start] + (end - 1 - start) * shared
            if gain > best:
                best, cut[end] = gain, (start, shared)
        saved[end] = best
    segments = []
    end = len(order)
    while end:
        start, shared = cut[end]
        segments.append(Segment(tuple(order[start:end]), shared))
        end = start
    return segments[::-1]


def pack(segments: list[Segment], lengths: Sequence[int], most: int, tokens: int | None = None) -> list[list[Segment]]:
    """Batches of at most `most` rows, and of at most `tokens` tokens (but at least a segment), the longest first.

    Args:
        lengths: tokens of each row.
    """
    batches: list[list[Segment]] = []
    room, free = 0, 0.0
    for segment in sorted(segments, key=lambda each: (-max(lengths[row] for row in each.rows), each.rows)):
        size = segment.shared + sum(lengths[row] - segment.shared for row in segment.rows)
        if len(segment.rows) > room or size > free:
            batches.append([])
            room, free = most, float("inf") if tokens is None else tokens
        batches[-1].append(segment)
        room -= len(segment.rows)
        free -= size
    return batches
