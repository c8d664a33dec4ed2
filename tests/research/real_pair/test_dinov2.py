"""The tower in an ONNX graph: names, transposed weights and positions, read as `Dinov2Model` has them."""

import re
import sys
from types import SimpleNamespace

import pytest
import torch
from transformers import Dinov2Config, Dinov2Model

from modeling_aligned_llava.errors import UserError
from research.real_pair import dinov2


def as_graph(model):
    """What the exporter of torch makes of a backbone: linear weights transposed and nameless, positions cut apart."""
    names = {new: old for old, new in dinov2.RENAMED.items()}
    constants, nodes = {}, [SimpleNamespace(op_type="MatMul", name="/backbone/scores/MatMul", input=["a", "b"])]
    for name, value in model.state_dict().items():
        for new, old in names.items():
            name = name.replace(new, old)
        if name.startswith("encoder") and value.ndim == 2:
            constants[f"onnx::MatMul_{len(constants)}"] = value.T
            path = re.sub(r"\.(?!\d)", "/", name.removesuffix(".weight"))
            nodes.append(
                SimpleNamespace(op_type="MatMul", name=f"/backbone/{path}/MatMul", input=["x", list(constants)[-1]])
            )
        elif name == "embeddings.position_embeddings":
            constants |= {"onnx::Reshape_1": value[:, 1:], "onnx::Concat_2": value[:, :1]}
        elif name != "embeddings.mask_token":
            constants[f"backbone.{name}"] = value
    constants["decoder.bias"] = torch.zeros(1)
    initializer = [SimpleNamespace(name=name, value=value) for name, value in constants.items()]
    return SimpleNamespace(graph=SimpleNamespace(initializer=initializer, node=nodes))


@pytest.fixture
def tiny():
    torch.manual_seed(0)
    return Dinov2Model(Dinov2Config(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=28)).eval()


def test_every_parameter_of_the_graph_is_read(tiny, monkeypatch):
    for parameter in tiny.parameters():
        torch.nn.init.normal_(parameter)
    torch.nn.init.zeros_(tiny.embeddings.mask_token)
    graph = as_graph(tiny)
    to_array = SimpleNamespace(to_array=lambda constant: constant.value.numpy())
    monkeypatch.setitem(sys.modules, "onnx", SimpleNamespace(load=lambda path: graph))
    monkeypatch.setitem(sys.modules, "onnx.numpy_helper", to_array)
    state = dinov2.read_graph(None)
    assert state.keys() == tiny.state_dict().keys()
    for name, value in tiny.state_dict().items():
        assert torch.equal(state[name], value), name


def test_another_tower_is_not_taken_for_it(tiny):
    with pytest.raises(UserError, match=r"the features of a striped image have a mean norm of .* instead of 9\.51"):
        dinov2.check(tiny)
