"""What turns an answer into a score: a change there scores finished answers again, without asking for them."""

import functools
from pathlib import Path

from modeling_aligned_llava.harness import provenance
from modeling_aligned_llava.loading.fingerprint import hash_text


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
    """The sha256 of the code that scores, without comments, docstrings and formatting."""
    root = Path(__file__).parents[1]
    sources = [(root / name).read_text(encoding="utf-8") for name in SCORING_CODE]
    return hash_text("\0".join(map(provenance._instructions, sources)))
