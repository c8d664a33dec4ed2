"""Which rows are kept from training: never one whose image, or whose text if it has no image, is trained on too."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Any

import numpy as np

from modeling_aligned_llava.errors import UserError


Part = tuple[Hashable, Any]  # what equal parts have in common without being read, and how to read it


def held_out(
    rows: list[list[Part]], content: Callable[[Any], Hashable], weights: np.ndarray, wanted: int, seed: int
) -> np.ndarray:
    """Whether each row is held out; rows that have a part in common are on one side.

    About `wanted` rows are, chosen at random in proportion to `weights` [rows]. Of the parts, only those of rows that
    are considered, and others that look like them, are read.

    Args:
        rows: the images of each row, or its text.
        content: reads a part.

    Raises:
        UserError: nothing would be left to train on, or too many rows belong together.
    """
    if wanted >= len(rows):
        raise UserError(f"eval_rows {wanted} leaves none of the {len(rows)} rows to train on")
    alike: dict[Hashable, list[tuple[int, Any]]] = defaultdict(list)
    for row, parts in enumerate(rows):
        for look, part in parts:
            alike[look].append((row, part))

    def together(first: int, limit: int) -> set[int]:
        """The rows that belong to one, or more than `limit` of them."""
        group, new = {first}, [first]
        while new and len(group) <= limit:
            for look, part in rows[new.pop()]:
                same = {
                    row
                    for row, other in alike[look]
                    if row not in group and (other == part or content(other) == content(part))
                }
                group |= same
                new += same
        return group

    order = np.argsort(np.random.default_rng(seed).exponential(size=len(rows)) / weights).tolist()
    held: set[int] = set()
    for slack in (1, 2):  # twice as many rows as wanted, if they cannot be had otherwise
        too_large: set[int] = set()
        for row in order:
            left = slack * wanted - len(held)
            if len(held) >= wanted:
                break
            if row not in held and row not in too_large:
                group = together(row, left)
                (held if len(group) <= left and len(group) < len(rows) else too_large).update(group)
        if held:
            break
    if not held:
        raise UserError(f"eval_rows {wanted}: no row can be held out, because each shares images with many others")
    return np.isin(np.arange(len(rows)), [*held])
