"""What FSDP2 needs beyond accelerate's settings: float32 reductions and norm, and a head that is read.

accelerate launch --config_file configuration/accelerate/fsdp2.yaml -m train.sft ...
"""

from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from transformers import PreTrainedModel

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.norm_parameters import alignment_norm
from modeling_aligned_llava.modeling_aligned_llava import forget_absent_layers


if TYPE_CHECKING:
    from accelerate import FullyShardedDataParallelPlugin


def set_up_fsdp2(plugin: "FullyShardedDataParallelPlugin", model: PreTrainedModel) -> None:
    """Complete accelerate's plugin for this model and shard the units that accelerate would not make.

    * accelerate's bfloat16 policy also reduces gradients in bfloat16 and rounds the loss to it. Here only weights and
      activations are bfloat16, and gradients are reduced and accumulated in float32.
    * The norm computes in float32: in bfloat16, a gain near 0.01 does not take Adam's small steps.
    * TRL's fused head reads the head's weight without calling the head. Its unit must be gathered by something that is
      called, the final norm; gathered by TRL itself, each process would keep the gradient of its own rows only.

    Raises:
        UserError: the plugin is for FSDP1, or the decoder has no final norm.
    """
    if plugin.fsdp_version != 2:
        raise UserError("FSDP1 is not supported: set fsdp_version: 2, as in configuration/accelerate/fsdp2.yaml")
    forget_absent_layers(model)
    half = None if plugin.mixed_precision_policy is None else plugin.mixed_precision_policy.param_dtype
    policy = MixedPrecisionPolicy(param_dtype=half, reduce_dtype=torch.float32)
    plugin.mixed_precision_policy = policy
    norm = alignment_norm(model)
    if norm is not None:
        fully_shard(norm, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.float32, cast_forward_inputs=False))
    head: Any = model.get_output_embeddings()
    if head.weight is not model.get_input_embeddings().weight:  # tied, they are one unit of accelerate's
        decoder = model.get_decoder()
        norms = [module for module in decoder.children() if "Norm" in type(module).__name__]
        if not norms:
            raise UserError(f"FSDP2: {type(decoder).__name__} has no final norm, so its head cannot be gathered")
        fully_shard(
            [norms[-1], head], mp_policy=policy, offload_policy=plugin.cpu_offload, reshard_after_forward=False
        )
