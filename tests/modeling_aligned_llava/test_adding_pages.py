"""The steps of docs/contributing.md for a norm variant, a backbone and a family, in a copy of the code."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file

from modeling_aligned_llava import align, method_fields, methods
from modeling_aligned_llava.alignment import NORM
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import FAMILIES, Family, model_parts
from modeling_aligned_llava.norm_alignment import target_gain
from tests import REPOSITORY
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.one_line import one_line
from tests.pages import blocks
from tests.train.conftest import write_data


def steps(section: str, language: str) -> list[str]:
    """The indented code blocks of a section, which belong to its numbered steps."""
    return blocks(REPOSITORY / "docs/contributing.md", language, indent=" {4}", section=section)


@pytest.fixture
def copy(tmp_path) -> Path:
    """A copy of the code and recipes, with tinyworld's backbones and a handful of captions in place of its data."""
    root = tmp_path / "repository"
    for folder in ("modeling_aligned_llava", "configuration", "train"):
        shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "tinyworld").mkdir()
    (root / "tinyworld/backbones").symlink_to(REPOSITORY / "tinyworld/backbones")
    data = root / "results/tinyworld/data"
    data.mkdir(parents=True)
    write_data(data)
    return root


def run(command: str, root: Path) -> None:
    """Run a command of a page in the copy, which comes first on the path."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(root),
        "HF_DATASETS_CACHE": str(root / "cache"),
    }
    ended = subprocess.run(["bash", "-ec", command], cwd=root, env=environment, capture_output=True, text=True)  # noqa: S603, S607
    assert ended.returncode == 0, ended.stderr[-2000:]


@pytest.mark.slow
def test_a_norm_variant_is_one_entry(copy):
    (entry,) = steps("A norm variant", "yaml")
    with (copy / "configuration/methods.yaml").open("a", encoding="utf-8") as file:
        file.write(f"\n{entry}")
    (train_ten_steps,) = steps("A norm variant", "bash")
    run(train_ten_steps, copy)
    folder = copy / "results/norm-double"
    config = json.loads((folder / "config.json").read_text())
    (name,) = yaml.safe_load(entry)
    assert config["method"] == name == "norm-double" and config["target_scale"] == 2.0
    gain = load_file(folder / "assembled/model.safetensors")["model.multi_modal_projector.norm.weight"]
    start = target_gain(config["text_norm"], len(gain), target_scale=2.0)
    torch.testing.assert_close(gain, torch.full_like(gain, start))
    trained = load_file(folder / "model.safetensors")["model.multi_modal_projector.norm.weight"]
    assert not torch.equal(trained, gain)
    assert json.loads((folder / "norm_parameters.json").read_text())["method"] == name


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"projector_nrom": "layernorm"}, "methods.yaml: mine: unknown field 'projector_nrom'; fields: comp"),
        ({"text_norm": 1.0}, "methods.yaml: mine: unknown field 'text_norm'"),
        ({"norm_init": "zeros"}, "methods.yaml: mine: norm_init must be one of text, ones, not 'zeros'"),
    ],
)
def test_a_wrong_entry_is_one_line(monkeypatch, entry, message):
    monkeypatch.setattr(methods, "_methods", lambda: {"mine": entry})
    with one_line(message):
        method_fields("mine")


@pytest.mark.slow
def test_a_backbone_is_a_folder_of_recipes_and_perhaps_a_template(copy):
    copy_recipe, copy_template, try_it = steps("A backbone", "bash")
    run(copy_recipe, copy)
    run(copy_template, copy)
    recipes = {
        file.stem: yaml.safe_load(file.read_text()) for file in copy.glob("configuration/train/qwen2.5-3b/*.yaml")
    }
    assert (recipes["stage1"]["language_model"], recipes["stage1"]["chat_template"]) == (
        "Qwen/Qwen2.5-3B-Instruct",
        "my_template",
    )
    assert recipes["stage2"]["model_name_or_path"] == "results/qwen2.5-3b/checkpoints/{method}/stage1"
    assert "qwen2.5-7b" not in json.dumps(recipes)
    # The page's training command, on tinyworld's backbones and data: no GPU, one step.
    (train,) = (line for line in try_it.splitlines() if "train.sft" in line)
    run(
        f"{train} --vision_tower tinyworld/backbones/vision --language_model tinyworld/backbones/language "
        "--data_path results/tinyworld/data/stage1.json --image_folder results/tinyworld/data/images --bf16 false "
        "--global_batch_size 8 --max_steps 1 --logging_steps 1",
        copy,
    )
    template = (copy / "modeling_aligned_llava/loading/chat_templates/my_template.jinja").read_text(encoding="utf-8")
    assert (copy / "results/ten/chat_template.jinja").read_text(encoding="utf-8").strip() == template.strip()
    (line,) = (copy / "results/ten/log.jsonl").read_text().splitlines()
    assert json.loads(line)["loss"] > 0


def test_a_model_family_is_one_entry(monkeypatch, capsys):
    model, inputs = tiny("qwen2_5_vl")
    monkeypatch.delitem(FAMILIES, "qwen2_5_vl")
    with pytest.raises(UserError, match="qwen2_5_vl is none of the families it knows"):
        align(model)
    list_modules, align_it = steps("A model family", "python")
    (entry,) = steps("A model family", "text")
    exec(list_modules, {"model": model})  # noqa: S102
    added = eval(f"{{{entry}}}", {"Family": Family})  # noqa: S307
    ((model_type, family),) = added.items()
    assert f"\n{family.connector} " in capsys.readouterr().out
    monkeypatch.setitem(FAMILIES, model_type, family)
    exec(align_it, {"model": model})  # noqa: S102
    text_norm = float(capsys.readouterr().out)
    connector = model_parts(model).connector
    assert connector is model.base_model.get_submodule(family.connector) and hasattr(connector, NORM)
    seen = []
    connector.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(**inputs)
    assert seen[0].norm(dim=-1).mean().item() == pytest.approx(text_norm, rel=0.01)
