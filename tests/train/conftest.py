"""Tiny conversations with images in LLaVA's format, and arguments for stages that train on them in seconds."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from tests import REPOSITORY
from tests.conftest import TinyBackbones
from tests.train.data.rows import turns
from train.stage import run_stage


CONFIGURATION = REPOSITORY / "configuration" / "train" / "tinyworld"


def write_data(root: Path) -> Path:
    """Fill a folder with `stage1.json`, `stage2.json` (multi-turn, every third row without image) and `images/`."""
    (root / "images").mkdir()
    captions, chats = [], []
    for i in range(24):
        name = f"{i}.png"
        Image.new("RGB", (20 + i, 28), (10 * i, 255 - 10 * i, 50)).save(root / "images" / name)
        captions.append({"id": str(i), "image": name, "conversations": turns("<image>\nDescribe.", f"shade {i}")})
        texts = [text for turn in range(1 + i % 3) for text in (f"number {turn}?", "x" * (1 + i))]
        if i % 3:
            texts[0] = f"<image>\n{texts[0]}"
        chats.append({"id": str(i), **({"image": name} if i % 3 else {}), "conversations": turns(*texts)})
    (root / "stage1.json").write_text(json.dumps(captions))
    (root / "stage2.json").write_text(json.dumps(chats))
    return root


@pytest.fixture(scope="session")
def tiny_data(tmp_path_factory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


def stage_commands(tiny_backbones: TinyBackbones, tiny_data: Path) -> Callable[..., list[str]]:
    """`stage_commands(...)(stage, method, root, **settings)` -> command line of a six-step stage under `root`."""

    def make(stage: int, method: str, root: Path, **settings) -> list[str]:
        given = {
            "config": CONFIGURATION / f"stage{stage}.yaml",
            "method": method,
            "data_path": tiny_data / f"stage{stage}.json",
            "image_folder": tiny_data / "images",
            "data_cache": tiny_data / "cache",
            "output_dir": root / "{method}" / f"stage{stage}",
            "max_steps": 6,
            "global_batch_size": 8,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            "save_steps": 2,
            **settings,
        }
        if stage == 1:
            given |= {"vision_tower": tiny_backbones.vision, "language_model": tiny_backbones.qwen2}
        else:
            given.setdefault("model_name_or_path", root / "{method}" / "stage1")
        return [text for name, value in given.items() for text in (f"--{name}", str(value))]

    return make


@pytest.fixture(scope="session")
def stage_arguments(tiny_backbones, tiny_data) -> Callable[..., list[str]]:
    return stage_commands(tiny_backbones, tiny_data)


@pytest.fixture(scope="session")
def train_stage(stage_arguments, tiny_checkpoint) -> Callable[..., Path]:
    """`train_stage(root, stage, method, **settings)` -> the folder of the trained stage.

    Stage 2 starts from the assembled checkpoint of the method unless it is told another.
    """

    def train(root: Path, stage: int, method: str = "norm-gwc", **settings) -> Path:
        if stage == 2:
            settings = {"model_name_or_path": tiny_checkpoint(method), **settings}
        run_stage(stage_arguments(stage, method, root, **settings))
        return root / method / f"stage{stage}"

    return train


@pytest.fixture(scope="session")
def straight(stage_arguments, tmp_path_factory) -> Path:
    """Folder with both stages of norm-gwc, trained without interruption."""
    root = tmp_path_factory.mktemp("straight")
    for stage in (1, 2):
        run_stage(stage_arguments(stage, "norm-gwc", root))
    return root / "norm-gwc"
