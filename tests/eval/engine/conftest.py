import pytest

from eval.engine.pool import open_pool


@pytest.fixture(scope="module")
def pool():
    """Two slots."""
    return open_pool(2, "cpu")
