"""Every accelerate file is read by accelerate's own parser and says what its name says."""

import pytest
from accelerate.commands.config.config_args import load_config_from_file

from tests import REPOSITORY


FOLDER = REPOSITORY / "configuration" / "accelerate"
KINDS = {"one_gpu": "NO", "ddp": "MULTI_GPU", "fsdp2": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


def test_all_are_there():
    assert {path.stem for path in FOLDER.iterdir()} == KINDS.keys()


@pytest.mark.parametrize("name", KINDS)
def test_config(name):
    config = load_config_from_file(str(FOLDER / f"{name}.yaml"))
    assert config.distributed_type == KINDS[name]
    assert config.mixed_precision == "bf16" and not config.use_cpu
    if name.startswith("zero"):
        assert config.deepspeed_config["zero_stage"] == int(name[-1])
    if name == "fsdp2":
        assert config.fsdp_config["fsdp_version"] == 2
        assert config.fsdp_config["fsdp_state_dict_type"] == "FULL_STATE_DICT"  # else nothing is saved
