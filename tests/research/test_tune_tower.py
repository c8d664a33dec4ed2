"""A vision tower is tuned to a decoder's embeddings of names."""

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, SiglipVisionModel

from research.pretrain_vision import TOWER
from research.tune_tower import locked_texts, tune
from tests import REPOSITORY


BACKBONES = REPOSITORY / "tinyworld/backbones"


def test_texts_are_mean_embeddings_without_article_less_the_mean_of_all_names():
    tokenizer = AutoTokenizer.from_pretrained(BACKBONES / "language")
    embeddings = AutoModelForCausalLM.from_pretrained(BACKBONES / "language").get_input_embeddings().weight.double()
    texts_TD = locked_texts(TOWER, BACKBONES / "language")
    assert texts_TD.shape == (len(TOWER.texts), embeddings.shape[1]) and not texts_TD.requires_grad

    def mean(text: str) -> torch.Tensor:
        return embeddings[tokenizer(" " + text, add_special_tokens=False).input_ids].mean(0)

    names = [name.removeprefix("a ").removeprefix("the ") for name in TOWER.world.part_names]
    expected = mean("big red circle") - torch.stack([mean(name) for name in names]).mean(0)
    assert "a big red circle" in TOWER.texts
    found = texts_TD[TOWER.texts.index("a big red circle")].double()
    torch.testing.assert_close(found, expected / expected.norm(), atol=1e-5, rtol=0)


@pytest.mark.slow
def test_patches_learn_to_match_locked_texts():
    vision = SiglipVisionModel.from_pretrained(BACKBONES / "vision", attn_implementation="eager")
    before = {name: weight.clone() for name, weight in vision.named_parameters()}
    share = tune(TOWER, vision, locked_texts(TOWER, BACKBONES / "language"), 120, 16, 1e-3, seed=0)
    assert share > 0.2  # a hundredth by chance
    changed = {name for name, weight in vision.named_parameters() if not torch.equal(weight, before[name])}
    assert {name for name in before if "layers.3." in name} <= changed
