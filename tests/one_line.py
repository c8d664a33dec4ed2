"""Errors that a user sees, each of a single line."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from modeling_aligned_llava.errors import UserError


@contextmanager
def one_line(message: str, kind: type[Exception] = UserError) -> Iterator[pytest.ExceptionInfo]:
    """As `pytest.raises(kind, match=message)`, and the error has no second line."""
    with pytest.raises(kind, match=message) as error:
        yield error
    assert "\n" not in str(error.value)
