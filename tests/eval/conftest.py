import pytest

from tests.eval import score_rows


@pytest.fixture
def rows():
    return score_rows.four_models()
