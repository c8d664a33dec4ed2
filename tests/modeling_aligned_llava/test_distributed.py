"""Two gloo processes, one row each, DDP and FSDP2: the gradients of one process with both rows."""

import os

import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator, FullyShardedDataParallelPlugin
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoModelForImageTextToText

from modeling_aligned_llava import align
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.train.sharded_on_cpu import shard_on_cpu


PROCESSES = 2
ARMS = {"layernorm": {"method": "norm-gwc"}, "rmsnorm": {"method": "norm-rms", "compensation_exponent": 0.5}}


def batch():
    """Two rows of one image each, with as many labels."""
    _, row = tiny("llava")
    ids = row["input_ids"].repeat(PROCESSES, 1)
    ids[1, -3:] += 1
    return {**row, "input_ids": ids, "pixel_values": row["pixel_values"].repeat(PROCESSES, 1, 1, 1), "labels": ids}


def load(root, name):
    return AutoModelForImageTextToText.from_pretrained(f"{root}/{name}", trust_remote_code=True).train()


def gradients(model, run, inputs):
    run(**inputs).loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in found.items()}


def shard(model):
    """As accelerate does it, without our trainer."""
    shard_on_cpu()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    sharded, _ = Accelerator(cpu=True, fsdp_plugin=plugin).prepare(model, torch.optim.SGD(model.parameters()))
    assert all(isinstance(parameter, DTensor) for parameter in sharded.parameters())
    return sharded


def meet(rank, root):
    torch.set_num_threads(1)
    places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": PROCESSES, "LOCAL_WORLD_SIZE": PROCESSES}
    os.environ.update({name: str(place) for name, place in places.items()})
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=PROCESSES)


def process(rank, root):
    meet(rank, root)
    for name in ARMS:
        model = load(root, name)
        mine = {key: tensor[rank : rank + 1] for key, tensor in batch().items()}
        # the tower's post_layernorm comes after the features that LLaVA reads
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        found = {"ddp": gradients(model, ddp, mine)}
        sharded = shard(load(root, name))
        found["fsdp2"] = gradients(sharded, sharded, mine)
        if rank == 0:
            torch.save(found, f"{root}/{name}.pt")
    dist.destroy_process_group()


def assert_close(way, found, expected):
    assert found.keys() == expected.keys(), way
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        tolerance = {"rtol": 1e-5, "atol": 1e-6 * largest.item()}
        torch.testing.assert_close(found[name], gradient, **tolerance, msg=f"{way} {name}")


@pytest.mark.slow
def test_gradients_of_two_processes_are_those_of_one(tmp_path):
    for name, fields in ARMS.items():
        align(tiny("llava")[0], text_norm=1.0, **fields).save_pretrained(tmp_path / name)
    torch.multiprocessing.spawn(process, args=(str(tmp_path),), nprocs=PROCESSES)
    for name in ARMS:
        model = load(tmp_path, name)
        expected = gradients(model, model, batch())
        assert sum("alignment_norm" in key for key in expected) == (2 if name == "layernorm" else 1)
        for way, found in torch.load(tmp_path / f"{name}.pt", weights_only=True).items():
            assert_close(way, found, expected)
