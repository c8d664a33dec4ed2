"""One line for whatever goes wrong with the Hub."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from modeling_aligned_llava.errors import UserError


@contextmanager
def hub_errors_named(what: str) -> Iterator[None]:
    """Turn whatever the Hub's client raises into one line that begins with `what`.

    Raises:
        UserError: the Hub refuses, does not answer, or cannot be reached.
    """
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # including errors of its HTTP library
        # Without the queries of addresses: those of signed ones are keys.
        text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", " ".join(str(error).split()))
        raise UserError(f"{what}: {type(error).__name__}: {text[:300]}") from error
