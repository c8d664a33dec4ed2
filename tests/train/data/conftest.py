import pytest
from transformers import AutoProcessor


@pytest.fixture(scope="session")
def processor(tiny_checkpoint):
    return AutoProcessor.from_pretrained(tiny_checkpoint("norm"))
