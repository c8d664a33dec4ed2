import os


os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch

from tests.eval import stand_in


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def tiny_llava(tmp_path_factory):
    return stand_in.write_llava(tmp_path_factory.mktemp("llava") / "tiny")


@pytest.fixture(scope="session")
def tiny_language_model(tmp_path_factory):
    return stand_in.write_language_model(tmp_path_factory.mktemp("language") / "tiny")


@pytest.fixture(scope="session")
def mirror_root(tmp_path_factory):
    return stand_in.write_mirror(tmp_path_factory.mktemp("mirror"))
