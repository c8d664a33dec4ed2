"""Parameters by learning rate: each has exactly one, or is frozen."""

import pytest
import torch

from modeling_aligned_llava.errors import UserError
from tests.modeling_aligned_llava.tiny_families import BUILDERS
from train.optimization.parameter_groups import group_parameters


def test_every_parameter_has_one_rate_or_is_frozen():
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(2, 3), "b": torch.nn.Linear(3, 1)})
    groups = group_parameters(model, {"^a": 1e-3, "b.weight": 1e-4}, ["b.bias"])
    assert [(g.pattern, g.learning_rate, g.size) for g in groups] == [
        ("b.bias", None, 1),
        ("^a", 1e-3, 9),
        ("b.weight", 1e-4, 3),
    ]
    with pytest.raises(UserError, match=r"parameter b\.weight must match one of .*; it matches none"):
        group_parameters(model, {"^a": 1e-3}, ["b.bias"])
    with pytest.raises(UserError, match=r"parameter a\.weight must match one of .*; it matches \^a and weight"):
        group_parameters(model, {"^a": 1e-3, "weight": 1e-4}, ["bias"])
    with pytest.raises(UserError, match=r"learning_rates: all that b.weight matches is frozen: narrow frozen"):
        group_parameters(model, {"^a": 1e-3, "b.weight": 1e-4}, [r"^b\."])


def test_a_regular_expression_counts_before_a_part():
    model, _ = BUILDERS["llava"]()
    groups = group_parameters(model, {"language": 1e-3, "lm_head": 1e-4}, ["vision", "projector", "embed_tokens"])
    names = {group.pattern: group.names for group in groups}
    assert names["lm_head"] == ["lm_head.weight"] and names["embed_tokens"] == [
        "model.language_model.embed_tokens.weight"
    ]
    assert len(names["language"]) > 2 and all(".layers." in n or n.endswith("norm.weight") for n in names["language"])
