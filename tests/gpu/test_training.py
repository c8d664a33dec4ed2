"""A step on a GPU has the loss, gradients and weights of a CPU: attention, FSDP2, fused head, compiled."""

import copy

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests.gpu import needs_gpu
from tests.train.test_cost import BATCH, backward, inputs, real_model, small_config
from train.cost import memory
from train.data.llava_tokens import ImageTextCollator
from train.stage import run_stage


pytestmark = needs_gpu


@pytest.fixture(autouse=True)
def exact_products():
    """float32 products without TF32, which would differ from a CPU's in the third digit."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False


@pytest.fixture
def model(tiny_checkpoint):
    return AlignedLlavaForConditionalGeneration.from_pretrained(tiny_checkpoint("norm-gwc")).train()


def batch_of(model, device="cuda"):
    """Rows with one, two and no images, the second half of their text supervised."""
    generator = torch.Generator().manual_seed(0)
    rows = []
    for text, images in ((5, 1), (17, 2), (9, 0)):
        words = torch.randint(5, 200, (text,), generator=generator).tolist()
        ids = [model.config.image_token_id] * (4 * images) + words
        labels = [-100] * (len(ids) - text // 2) + words[text - text // 2 :]
        rows.append({"input_ids": ids, "labels": labels, "images": []})
    batch = ImageTextCollator(None, 0, lambda rows: (rows, []))(rows)
    pixels = torch.randn(3, 3, 28, 28, generator=torch.Generator().manual_seed(1))
    return {name: value.to(device) for name, value in {**batch, "pixel_values": pixels}.items()}


def step(model, batch):
    """Loss and gradients by name; without a key-value cache, as in training."""
    model.zero_grad()
    loss = model(**batch, use_cache=False).loss
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def close(found, expected, loss, gradient):
    """Loss and gradients within relative tolerances; that of gradients is of their norm."""
    assert found[0] == pytest.approx(expected[0], rel=loss)
    assert found[1].keys() == expected[1].keys()
    whole = torch.cat([g.flatten().double().cpu() for g in expected[1].values()])
    other = torch.cat([found[1][name].flatten().double().cpu() for name in expected[1]])
    assert (other - whole).norm() <= gradient * whole.norm()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_step_has_the_loss_and_gradients_of_the_cpu(model, attention):
    model.set_attn_implementation(attention)
    expected = step(model, batch_of(model, "cpu"))
    close(step(model.cuda(), batch_of(model)), expected, loss=1e-5, gradient=1e-4)


def test_autocast_to_bfloat16_keeps_weights_norm_and_gradients_in_float32(model):
    expected = step(model, batch_of(model, "cpu"))
    model.cuda()
    seen = []
    model.model.multi_modal_projector.norm.register_forward_hook(lambda module, args, output: seen.append(args[0]))
    with torch.autocast("cuda", torch.bfloat16):
        found = step(model, batch_of(model))
    close(found, expected, loss=1e-2, gradient=5e-2)
    assert seen[0].dtype == torch.bfloat16 and {g.dtype for g in found[1].values()} == {torch.float32}


def test_a_compiled_model_has_the_same_step(model):
    expected = step(model.cuda(), batch_of(model))
    compiled = torch.compile(model)
    model.zero_grad()
    loss = compiled(**batch_of(model), use_cache=False).loss
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    for name in gradients.keys() - expected[1].keys():  # a compiled graph answers zeros where there is no gradient
        assert not gradients.pop(name).any(), name
    close((loss.item(), gradients), expected, loss=1e-5, gradient=1e-4)


@pytest.fixture
def one_rank(tmp_path):
    """A group of this process alone."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)
    yield init_device_mesh("cuda", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("half", [None, torch.bfloat16])
def test_fsdp2_on_one_rank(model, one_rank, half):
    expected = step(copy.deepcopy(model).cuda(), batch_of(model))
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    keep = MixedPrecisionPolicy(
        reduce_dtype=torch.float32, cast_forward_inputs=False
    )  # as train/optimization/fsdp2.py
    model.cuda()
    fully_shard(model.model.multi_modal_projector.norm, mesh=one_rank, mp_policy=keep)
    for module in (*model.model.language_model.layers, *model.model.vision_tower.encoder.layers, model):
        fully_shard(module, mesh=one_rank, mp_policy=policy)
    loss, gradients = step(model, batch_of(model))
    whole = {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in gradients.items()}
    close((loss, whole), expected, loss=1e-2 if half else 1e-5, gradient=5e-2 if half else 1e-4)


def test_a_stage_with_the_fused_head_has_the_weights_of_the_cpu(stage_arguments, tmp_path):
    """On CUDA TRL's fused head selects the labelled positions; on a CPU ours does."""
    trained = {}
    for place in ("cpu", "cuda"):
        arguments = stage_arguments(1, "norm-gwc", tmp_path / place, max_steps=2)
        run_stage([*arguments, "--use_cpu", "true"] if place == "cpu" else arguments)
        trained[place] = load_file(tmp_path / place / "norm-gwc" / "stage1" / "model.safetensors")
    for name, tensor in trained["cpu"].items():  # Adam may move a weight without a gradient either way
        assert (trained["cuda"][name] - tensor).norm() <= 1e-2 * tensor.norm(), name


def used_by_two_steps(stage):
    """Bytes allocated after two steps, and at most during the second; what `train.cost` counts."""
    config, before = small_config(scale=4), torch.cuda.memory_allocated()
    model, meta = real_model(config, stage)
    batch = {name: value.cuda() if torch.is_tensor(value) else value for name, value in inputs(config).items()}
    optimizer = torch.optim.AdamW([p for p in model.cuda().parameters() if p.requires_grad], fused=True)
    for _ in range(2):
        optimizer.zero_grad()
        torch.cuda.reset_peak_memory_stats()
        backward(model, batch)
        optimizer.step()
    kept, peak = torch.cuda.memory_allocated() - before, torch.cuda.max_memory_allocated() - before
    return kept, peak, memory(meta, BATCH, bf16=False)


@pytest.mark.parametrize("stage", [1, 2])
def test_memory_is_as_counted(stage):
    """Activations are counted as an upper limit, three times too many in stage 1 (tests/train/test_cost.py)."""
    used_by_two_steps(stage)  # libraries take their workspaces, which they keep
    kept, peak, counted = used_by_two_steps(stage)
    assert kept == pytest.approx(counted.weights + counted.gradients + counted.optimizer, rel=0.02)
    assert 0.75 * counted.total < peak < 1.05 * counted.total
