"""The parts of families that the registry does not have, in whole models without memory."""

import pytest
import torch
from transformers import CONFIG_MAPPING, AutoModelForImageTextToText

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import model_parts


CONNECTORS = {
    "aria": "model.multi_modal_projector",
    "blip-2": "language_projection",
    "deepseek_vl": "model.aligner",
    "dots3_note": "model.vision_tower.merger",
    "ernie4_5_vl_moe": "model.resampler_model",
    "git": "git.visual_projection",
    "granite_docling": "model.vision_model.connector",
    "idefics2": "model.connector",
    "kimi_k25": "model.mm_projector",
    "kosmos-2": "image_to_text_projection",
    "lfm2_vl": "model.multi_modal_projector",
    "lighton_ocr": "model.vision_projection",
    "llama4": "multi_modal_projector",
    "minicpmv4_6": "model.merger",
    "molmo2": "model.multi_modal_projector",
    "qwen3_5": "model.visual.merger",
    "video_llama_3": "model.projector",
    "video_llava": "model.multi_modal_projector",
}
REFUSED = {
    "florence2": "is an encoder-decoder: its visual tokens enter the encoder",
    "fuyu": "cannot be measured: it has no vision tower and no connector",
    "mistral4": "is a text-only model: it has no vision encoder",
}


def built(model_type):
    with torch.device("meta"):
        return AutoModelForImageTextToText.from_config(CONFIG_MAPPING[model_type]())


@pytest.mark.parametrize("model_type", CONNECTORS)
def test_the_connector_is_found(model_type):
    assert model_parts(built(model_type)).names["connector"] == CONNECTORS[model_type]


@pytest.mark.parametrize("model_type", REFUSED)
def test_a_model_without_one_is_refused(model_type):
    with pytest.raises(UserError, match=REFUSED[model_type]):
        model_parts(built(model_type))
