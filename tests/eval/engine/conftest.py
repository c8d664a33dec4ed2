import pytest

from eval.engine.pool import open_pool


@pytest.fixture(scope="module")
def pool():
    with open_pool(2, "cpu") as pool:
        yield pool
