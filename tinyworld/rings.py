"""Options come in rings of four: a right answer always stands with the same three others, in the same round order."""

from collections.abc import Sequence


RING = 4


def others(answer: str, values: Sequence[str]) -> tuple[str, ...]:
    """What stands as options beside `answer`: those that follow it in its ring, the last of which may overlap.

    A model of this size learns to find an answer among options when it need not learn every order of every set.
    """
    place = values.index(answer)
    start = max(0, min(place // RING * RING, len(values) - RING))
    ring = tuple(values[start : start + RING])
    return ring[place - start + 1 :] + ring[: place - start]
