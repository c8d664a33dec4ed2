"""A Space written by the demo stands on its own: its page is built in a process that sees nothing but its folder."""

import json
import os
import subprocess
import sys

import pytest
import yaml
from PIL import Image

from eval.data.image_sample import ImageQuestion
from modeling_aligned_llava.errors import UserError


gradio = pytest.importorskip("gradio", reason="gradio is not installed (extra `demo`)")
pytestmark = pytest.mark.slow


def test_a_written_space_builds_its_page(tiny_checkpoint, tmp_path):
    from eval.demo.space import write_space

    models = {"plain": str(tiny_checkpoint("baseline")), "aligned": str(tiny_checkpoint("norm"))}
    space = tmp_path / "space"
    write_space(
        space, models, [ImageQuestion("red", lambda: Image.new("RGB", (40, 30), "red"), "Which colour?")], most=8
    )
    header = yaml.safe_load((space / "README.md").read_text().split("---")[1])
    assert header["sdk"] == "gradio" and header["sdk_version"] == gradio.__version__
    assert (space / header["app_file"]).is_file()
    assert any(line.startswith("torch") for line in (space / "requirements.txt").read_text().splitlines())
    for file in space.rglob("*"):
        if file.suffix in (".json", ".md", ".txt", ".py"):
            assert str(tmp_path) not in file.read_text(encoding="utf-8"), file
    program = (
        "import app, eval, modeling_aligned_llava as plugin, json\n"
        "labels = [block.label for block in app.demo.blocks.values() if getattr(block, 'label', None)]\n"
        "print(json.dumps([eval.__file__, plugin.__file__, labels]))"
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    ended = subprocess.run(  # noqa: S603
        [sys.executable, "-c", program], cwd=space, env=environment, capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    evaluation, plugin, labels = json.loads(ended.stdout.splitlines()[-1])
    assert evaluation.startswith(str(space)) and plugin.startswith(str(space))
    assert sum(label == "Answer" for label in labels) == 2 and "Or pick one" in labels

    with pytest.raises(UserError, match="already exists"):
        write_space(space, models, [], most=8)


def test_a_hub_model_stays_on_the_hub_and_a_folder_that_is_absent_is_named(tmp_path):
    from eval.demo.space import write_space

    write_space(tmp_path / "space", {"theirs": "owner/name"}, [], most=8, trust_remote_code=True)
    settings = json.loads((tmp_path / "space/space.json").read_text())
    assert settings["models"] == {"theirs": "owner/name"} and settings["trust_remote_code"]
    assert not (tmp_path / "space/models").exists()
    with pytest.raises(UserError, match="--models mine: there is no folder"):
        write_space(tmp_path / "other", {"mine": "./nowhere"}, [], most=8)
    assert not (tmp_path / "other").exists()
