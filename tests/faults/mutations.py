"""How hypothesis changes a file: values in what it holds, or bytes of its text."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st


@dataclass(frozen=True)
class Mutation:
    """How the content of a file is changed.

    Args:
        place: 0 to 1, where in the file, or which of the values in it.
        what: "delete", "value" (replaced) or, for the file as bytes, "cut", "remove", "insert".
        value: the new value; for "insert", the bytes.
    """

    place: float
    what: str
    value: Any = None

    @property
    def is_of_text(self) -> bool:
        return self.what not in ("value", "delete")

    def of_text(self, content: bytes) -> bytes:
        at = round(self.place * len(content))
        if self.what == "cut":
            return content[:at]
        if self.what == "remove":
            return content[:at] + content[at + 1 + len(content) // 50 :]
        return content[:at] + self.value + content[at:]

    def of_values(self, content: Any) -> Any:
        places = [*_places(content)]
        if not places:
            return self.value
        holder, key = places[min(int(self.place * len(places)), len(places) - 1)]
        if self.what == "delete":
            del holder[key]
        else:
            holder[key] = self.value
        return content


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    """Each (container, key) in nested lists and dictionaries; of a long list, the first hundred."""
    items: Any = ()
    if isinstance(content, dict):
        items = content.items()
    elif isinstance(content, list):
        items = enumerate(content[:100])
    for key, value in list(items):
        yield content, key
        yield from _places(value)


NUMBERS = st.integers() | st.integers(0, 64) | st.integers(0, 50).map(lambda power: 2**power) | st.floats()
WORDS = ["none", "rmsnorm", "relative", "qwen2", "llava", "gelu", "<image>", "../x", "F64", "I8", "nan"]
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.sampled_from(WORDS) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=4,
)
PLACES = st.integers(0, 999_999).map(lambda place: place / 1_000_000)
INSERTED = st.binary(min_size=1, max_size=8)
IN_TEXT = st.builds(Mutation, PLACES, st.sampled_from(["cut", "remove"])) | st.builds(
    Mutation, PLACES, st.just("insert"), INSERTED
)
IN_VALUES = st.builds(Mutation, PLACES, st.just("value"), VALUES) | st.builds(Mutation, PLACES, st.just("delete"))
MUTATIONS = IN_VALUES | IN_VALUES | IN_TEXT
