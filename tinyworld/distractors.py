"""Distractors: the wrong options beside a right answer.

Values are split into groups of four. An answer always appears with the three others of its group, in the same cyclic
order, because a model of this size learns to find an answer among options only if it need not learn all orders of all
sets.
"""

from collections.abc import Sequence


GROUP = 4


def distractors(answer: str, values: Sequence[str]) -> tuple[str, ...]:
    """The other values of the answer's group, in cyclic order after it; the last group may overlap the one before."""
    index = values.index(answer)
    start = max(0, min(index // GROUP * GROUP, len(values) - GROUP))
    group = tuple(values[start : start + GROUP])
    return group[index - start + 1 :] + group[: index - start]
