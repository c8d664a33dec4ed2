import json

import pytest
from PIL import Image
from transformers import AutoProcessor


@pytest.fixture(scope="session")
def processor(tiny_checkpoint):
    return AutoProcessor.from_pretrained(tiny_checkpoint("norm"))


@pytest.fixture
def write(tmp_path):
    """Write rows into a file beside two images, `red.png` and `blue.png`."""
    for name, colour in (("red", (255, 0, 0)), ("blue", (0, 0, 255))):
        Image.new("RGB", (9, 9), colour).save(tmp_path / f"{name}.png")

    def make(*rows, name="data.json"):
        (tmp_path / name).write_text(json.dumps(rows))
        return tmp_path / name

    return make
