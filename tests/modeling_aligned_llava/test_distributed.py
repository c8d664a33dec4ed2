"""Two gloo processes, one row each, DDP and FSDP2: the gradients of one process with both rows."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration


PROCESSES = 2
# A gain of one element is sharded over two processes too.
ARMS = {
    "qwen2": {"projector_norm": "layernorm", "compensation_exponent": 1.0},
    "llama": {"projector_norm": "layernorm", "norm_gain": "scalar", "compensation_exponent": 0.5},
}


def batch(model):
    """Two rows of one image each, with as many labels."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 200, (PROCESSES, 20), generator=generator)
    ids[:, 2:6] = model.config.image_token_id
    pixels = torch.randn(PROCESSES, 3, 28, 28, generator=generator)
    return {"input_ids": ids, "pixel_values": pixels, "labels": ids.masked_fill(ids == ids[0, 2], -100)}


def load(folder, fields):
    return AlignedLlavaForConditionalGeneration.from_pretrained(folder, **fields).train()


def gradients(model, run, inputs):
    run(**inputs).loss.backward()
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in found.items()}


def shard(model):
    mesh = init_device_mesh("cpu", (PROCESSES,))
    blocks = [*model.model.language_model.layers, *model.model.vision_tower.encoder.layers]
    for module in (*blocks, model.model.multi_modal_projector, model):
        fully_shard(module, mesh=mesh)
    assert isinstance(model.model.multi_modal_projector.norm.weight, DTensor)
    return model


def meet(rank, root):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{root}/meet", rank=rank, world_size=PROCESSES)


def process(rank, root, folders):
    meet(rank, root)
    for decoder, fields in ARMS.items():
        model = load(folders[decoder], fields)
        mine = {name: tensor[rank : rank + 1] for name, tensor in batch(model).items()}
        # SigLIP's post_layernorm comes after the features that LLaVA reads
        ddp = DistributedDataParallel(model, find_unused_parameters=True)
        found = {"ddp": gradients(model, ddp, mine)}
        sharded = shard(load(folders[decoder], fields))
        found["fsdp2"] = gradients(sharded, sharded, mine)
        if rank == 0:
            torch.save(found, f"{root}/{decoder}.pt")
    dist.destroy_process_group()


def assert_close(way, found, expected):
    assert found.keys() == expected.keys(), way
    largest = max(gradient.abs().max() for gradient in expected.values())
    for name, gradient in expected.items():
        tolerance = {"rtol": 1e-5, "atol": 1e-6 * largest.item()}
        torch.testing.assert_close(found[name], gradient, **tolerance, msg=f"{way} {name}")


@pytest.mark.slow
def test_gradients_of_two_processes_are_those_of_one(tiny_checkpoint, tmp_path):
    folders = {decoder: str(tiny_checkpoint("baseline", decoder)) for decoder in ARMS}
    torch.multiprocessing.spawn(process, args=(str(tmp_path), folders), nprocs=PROCESSES)
    for decoder, fields in ARMS.items():
        model = load(folders[decoder], fields)
        expected = gradients(model, model, batch(model))
        assert sum("projector.norm" in name for name in expected) == 2
        for way, found in torch.load(tmp_path / f"{decoder}.pt", weights_only=True).items():
            assert_close(way, found, expected)
