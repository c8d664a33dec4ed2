"""How hypothesis changes a file: values in what it holds, or bytes of its text."""

from collections.abc import Callable, Iterator
from typing import Any

from hypothesis import strategies as st


NUMBERS = st.integers() | st.integers(0, 64) | st.integers(0, 50).map(lambda power: 2**power) | st.floats()
WORDS = ["none", "rmsnorm", "relative", "qwen2", "llava", "gelu", "<image>", "../x", "F64", "I8", "nan"]
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)


@st.composite
def mutated_text(draw: Callable[[Any], Any], content: bytes) -> bytes:
    """The file is cut off, or loses or gains some bytes."""
    at = draw(st.integers(0, len(content)))
    removed = draw(st.sampled_from([0, 1 + len(content) // 50, len(content)]))
    inserted = b"" if removed else draw(st.binary(min_size=1, max_size=8))
    return content[:at] + inserted + content[at + removed :]


@st.composite
def mutated_values(draw: Callable[[Any], Any], text: bytes, read: Callable[[bytes], Any]) -> Any:
    """What `read` finds in the text, with one value replaced or missing."""
    content = read(text)
    holder, key = draw(st.sampled_from([*places(content)]))
    if draw(st.booleans()):
        holder[key] = draw(VALUES)
    else:
        del holder[key]
    return content


def places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each (container, key) in nested lists and dictionaries; of a long list, the first hundred."""
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content[:100])
    for key, value in list(items):
        yield content, key
        yield from places(value)
