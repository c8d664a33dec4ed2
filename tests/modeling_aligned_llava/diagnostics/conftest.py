from collections.abc import Callable

import pytest

from eval.diagnostics.__main__ import main


@pytest.fixture
def run(call) -> Callable[..., None]:
    """`run(*words)` is `python -m eval.diagnostics` with these words."""
    return lambda *words: call(main, *words)
