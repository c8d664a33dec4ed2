"""The paper's two models at their real shapes, on the meta device."""

import json
from collections import Counter

import pytest
import torch
import yaml
from peft import LoraConfig, LoraModel
from torch import nn

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests import REPOSITORY
from tests.paper_models import paper_config
from train.optimization.parameter_groups import group_parameters


MOST_MEMORY = {"profile": 3.1}  # of the checkpoint: float32, beside the checkpoint's own pages
OTHERWISE = 1.3
QWEN_RECIPES = sorted((REPOSITORY / "configuration/train/qwen2.5-7b").glob("*.yaml"))


def on_meta(backbone):
    """SigLIP-SO400M and a decoder as assembly joins them, without memory."""
    with torch.device("meta"):
        return AlignedLlavaForConditionalGeneration(paper_config(backbone))


def total(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_qwen_7b_has_the_published_number_of_parameters():
    model = on_meta("qwen2.5-7b")
    decoder, head = model.model.language_model, model.lm_head
    assert total(decoder) + total(head) == 7_615_616_512  # "7.61B"
    assert total(decoder.layers) + total(decoder.norm) == 6_525_621_760  # "6.53B" without embeddings
    layer, pooling_head = 15_239_504, 15_238_352  # of SigLIP's vision tower, which has 428 M, assembly drops one each
    assert total(model.model.vision_tower) == 428_225_600 - layer - pooling_head
    projector = model.model.multi_modal_projector
    assert total(projector) == (1152 + 1) * 3584 + (3584 + 1) * 3584 + total(projector.norm)
    assert total(projector.norm) == 2 * 3584
    parts = (decoder, head, model.model.vision_tower, projector)
    assert total(model) == sum(map(total, parts)) and all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("path", QWEN_RECIPES, ids=lambda path: path.stem)
def test_each_parameter_of_qwen_7b_is_in_one_group(path):
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    model = on_meta("qwen2.5-7b")
    projector, unread = total(model.model.multi_modal_projector), total(model.model.vision_tower.post_layernorm)
    expected = {"stage1": projector, "stage2": total(model) - unread}
    if "lora" in recipe:
        layers = model.model.language_model.layers.modules()
        widths = sum(layer.in_features + layer.out_features for layer in layers if isinstance(layer, nn.Linear))
        expected["stage2_lora"] = projector + recipe["lora"]["r"] * widths
        with torch.device("meta"):
            LoraModel(model, LoraConfig(**recipe["lora"]), "default")
    groups = group_parameters(model, recipe["learning_rates"], recipe["frozen"])
    named = Counter(name for group in groups for name in group.names)
    assert named == Counter(name for name, _ in model.named_parameters())
    assert sum(group.size for group in groups) == total(model)
    assert all(group.names for group in groups)  # no pattern is idle
    assert sum(group.size for group in groups if group.learning_rate is not None) == expected[path.stem]


def test_fsdp2_units_of_qwen_7b():
    """The units by class hold all but the embeddings, the head, the projector and the last norm of each half."""
    model = on_meta("qwen2.5-7b")
    units = [module for module in model.modules() if type(module).__name__ in model._no_split_modules]
    names = Counter(type(unit).__name__ for unit in units)
    assert names == {"Qwen2DecoderLayer": 28, "SiglipEncoderLayer": 26, "SiglipVisionEmbeddings": 1}
    inner = model.model
    left = (inner.get_input_embeddings(), model.lm_head, inner.multi_modal_projector)
    norms = (inner.vision_tower.post_layernorm, inner.language_model.norm)
    assert total(model) - sum(map(total, units)) == sum(map(total, left + norms))


def test_the_recorded_figures_are_within_their_limits():
    recorded = REPOSITORY / "benchmarks/results/real_shapes.json"
    figures = json.loads(recorded.read_text(encoding="utf-8"))
    assert figures["parameters"] == total(on_meta("llama-3.2-3b")) and figures["visual_tokens"] == 729
    for step, taken in figures["steps"].items():
        assert taken["peak_gb"] <= MOST_MEMORY.get(step, OTHERWISE) * figures["checkpoint_gb"], step
