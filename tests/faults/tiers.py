"""Which cases run when: a few of each test in `make test`, all of them in `make test-all`."""

from collections.abc import Iterable
from typing import Any

import pytest


def in_campaign(cases: Iterable[Any]) -> list[Any]:
    """These values, or tuples of values, as cases of a campaign."""
    marks = (pytest.mark.slow, pytest.mark.campaign)
    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks) for case in cases]
