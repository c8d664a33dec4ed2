"""What a campaign expects of an error."""

from collections.abc import Iterator
from contextlib import contextmanager

from modeling_aligned_llava.errors import UserError


@contextmanager
def refused(*reasons: str) -> Iterator[None]:
    """The block must end with a user's error of one line that has all of `reasons` in it."""
    try:
        yield
    except UserError as error:
        text = str(error)
        assert "\n" not in text and all(reason in text for reason in reasons), text
    else:
        raise AssertionError(f"no error with {reasons}")
