import shutil

import pytest
import torch
from transformers import LlavaForConditionalGeneration


@pytest.fixture(scope="module")
def overflowing(tiny_llava, tmp_path_factory):
    """A LLaVA whose weights are finite and whose logits are too large for float16 alone."""
    folder = tmp_path_factory.mktemp("overflowing") / "model"
    shutil.copytree(tiny_llava, folder)
    model = LlavaForConditionalGeneration.from_pretrained(tiny_llava)
    with torch.no_grad():
        model.model.language_model.norm.weight.fill_(3e4)
        model.lm_head.weight.mul_(100)
    model.save_pretrained(folder)
    return folder
