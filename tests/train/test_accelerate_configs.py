"""The files for accelerate, read by its own parser."""

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from tests import REPOSITORY


FOLDER = REPOSITORY / "configuration" / "accelerate"
KINDS = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


@pytest.mark.parametrize("name", KINDS)
def test_a_file_configures_what_its_name_says(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.distributed_type == KINDS[name]
    assert config.mixed_precision == "bf16" and not config.use_cpu
    if name.startswith("zero"):
        assert config.deepspeed_config["zero_stage"] == int(name[-1])
    if name == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2
        assert config.fsdp_config["fsdp_state_dict_type"] == "SHARDED_STATE_DICT"
