"""How a fault must end for the user."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

from modeling_aligned_llava.errors import UserError


Result = TypeVar("Result")


@contextmanager
def refused(*reasons: str) -> Iterator[None]:
    """The block must end with a user's error of one line that has all of `reasons` in it."""
    with pytest.raises(UserError) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text and all(reason in text for reason in reasons), text


def unless_refused(action: Callable[[], Result], name: str) -> Result | None:
    """What `action` returns; None if it is refused in one line that names what is wrong."""
    try:
        return action()
    except UserError as error:
        assert name in str(error) and "\n" not in str(error), error
        return None
