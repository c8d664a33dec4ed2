"""What `set_up_fsdp2` adds to accelerate's plugin, on one process: units, and the precision of norm and gradients."""

import torch
import torch.distributed as dist
from accelerate import FullyShardedDataParallelPlugin
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from torch.distributed.fsdp import FSDPModule, fully_shard

from modeling_aligned_llava import AlignedLlavaForConditionalGeneration
from tests.together import alone
from train.optimization.fsdp2 import set_up_fsdp2


def shard_and_step(folder, meeting):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
    model = AlignedLlavaForConditionalGeneration.from_pretrained(folder).train()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    plugin.set_mixed_precision("bf16")
    set_up_fsdp2(plugin, model)
    is_unit = fsdp2_prepare_auto_wrap_policy(plugin, model)  # fails on a class that is not there
    units = {type(module).__name__ for module in model.modules() if is_unit(module)}
    assert units == {"Qwen2DecoderLayer", "SiglipEncoderLayer", "SiglipVisionEmbeddings"}
    norm = model.model.multi_modal_projector.norm
    assert isinstance(norm, FSDPModule) and isinstance(model.lm_head, FSDPModule)
    fully_shard(model, mp_policy=plugin.mixed_precision_policy)

    seen = {}
    norm.register_forward_hook(lambda module, inputs, output: seen.update(gain=module.weight.dtype, x=inputs[0].dtype))
    model.model.language_model.layers[0].mlp.register_forward_hook(
        lambda module, inputs, output: seen.update(decoder=module.down_proj.weight.dtype)
    )
    ids = torch.randint(5, 200, (1, 12), generator=torch.Generator().manual_seed(0))
    ids[:, :4] = model.config.image_token_id
    loss = model(input_ids=ids, pixel_values=torch.randn(1, 3, 28, 28), labels=ids).loss
    loss.backward()
    assert seen == {"gain": torch.float32, "x": torch.bfloat16, "decoder": torch.bfloat16}
    assert loss.dtype == torch.float32
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    dist.destroy_process_group()


def test_norm_loss_and_gradients_are_float32_under_bfloat16(tiny_checkpoint, tmp_path):
    folder = tiny_checkpoint("norm-gwc")
    alone(lambda: shard_and_step(folder, tmp_path / "meeting"))
