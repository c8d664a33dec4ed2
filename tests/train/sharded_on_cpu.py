"""`python -m tests.train.sharded_on_cpu ...`: `train.sft` with the sharding that the environment asks for, on a CPU.

accelerate refuses FSDP on a CPU. This adds the missing case to its state; everything after that is accelerate's own.
"""

import os

import yaml
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType

from tests import REPOSITORY


def accelerate_environment(engine):
    """What `accelerate launch` exports for configuration/accelerate/<engine>.yaml."""
    config = yaml.safe_load((REPOSITORY / "configuration" / "accelerate" / f"{engine}.yaml").read_text())
    if engine == "fsdp2":
        return {"ACCELERATE_USE_FSDP": "true", **{key.upper(): str(v) for key, v in config["fsdp_config"].items()}}
    if engine == "ddp":
        return {}
    prefixes = {
        "zero3_init_flag": "DEEPSPEED_ZERO3_INIT",
        "gradient_accumulation_steps": "GRADIENT_ACCUMULATION_STEPS",
    }
    prefixes["gradient_clipping"] = "GRADIENT_CLIPPING"
    settings = {
        f"ACCELERATE_{prefixes.get(key, f'DEEPSPEED_{key.upper()}')}": str(value)
        for key, value in config["deepspeed_config"].items()
    }
    return {"ACCELERATE_USE_DEEPSPEED": "true", "DS_ACCELERATOR": "cpu", **settings}


def shard_on_cpu() -> None:
    """Let accelerate's state accept FSDP for processes on a CPU."""
    original = AcceleratorState.__init__

    def init(self, *args, fsdp_plugin=None, **kwargs):
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            self.distributed_type = PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    AcceleratorState.__init__ = init


if __name__ == "__main__":
    from train.sft import main

    if os.environ.get("ACCELERATE_USE_FSDP") == "true":
        shard_on_cpu()
    main()
