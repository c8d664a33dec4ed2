"""What turns an answer into a score: a change there scores finished answers again, without asking for them."""

import functools
from pathlib import Path

from modeling_aligned_llava.harness.provenance import hash_code


# Of `eval`: what is right, which items and groups are formed, how many examples precede a question.
SCORING_CODE = (
    "data/benchmarks.py",
    "data/mirror.py",
    "data/sample_lines.py",
    "scoring/items.py",
    "suite/harnesses.py",
)


@functools.cache
def scoring_code() -> str:
    """The sha256 of the code that scores."""
    root = Path(__file__).parents[1]
    return hash_code(root, [root / name for name in SCORING_CODE])
