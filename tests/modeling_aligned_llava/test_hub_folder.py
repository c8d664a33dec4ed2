"""A saved folder is all one needs: loading without the package, what it holds and what not, bad ones, pushing."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from huggingface_hub import ModelCard
from PIL import Image
from transformers import AutoConfig, AutoModelForImageTextToText, AutoProcessor, pipeline
from transformers.testing_utils import CaptureLogger
from transformers.utils import logging

from modeling_aligned_llava import (
    AlignedLlavaConfig,
    AlignedLlavaForConditionalGeneration,
    align,
    load_aligned,
    method_names,
)
from modeling_aligned_llava.hub_folder import PROCESSOR_FILES, forget_local_paths, is_hub_id
from modeling_aligned_llava.loading.checkpoint import load_strict
from tests import REPOSITORY
from tests.clone import changed_copy
from tests.hub_stand_in import TOKEN, HubStandIn
from tests.local_server import Fault
from tests.modeling_aligned_llava.loaded import load
from tests.modeling_aligned_llava.tiny_families import tiny, write_checkpoint
from tests.one_line import one_line
from tests.pages import blocks


CODE = {
    f"{name}.py" for name in ("configuration_aligned_llava", "hub_folder", "modeling_aligned_llava", "norm_alignment")
}
PROMPT = "<|im_start|>user\n<image>\nwhat?<|im_end|>\n<|im_start|>assistant\n"
PICTURE = Image.new("RGB", (40, 30), (200, 30, 90))


HIDE = """
import importlib.util, os, sys
here = "modeling_aligned_llava/__init__.py"
sys.path[:] = [path for path in sys.path if not os.path.exists(os.path.join(path, here))]
found = importlib.util.find_spec("modeling_aligned_llava")
assert found is None or found.origin is None  # an editable install leaves a folder with data alone
"""


def inputs_of(folder):
    return AutoProcessor.from_pretrained(folder)(images=[PICTURE], text=[PROMPT], return_tensors="pt")


@pytest.fixture(scope="module")
def trained(tiny_checkpoint, tmp_path_factory):
    """method -> folder of a checkpoint whose every weight has left its start; its logits lie beside it."""
    root = tmp_path_factory.mktemp("trained")
    for method in method_names():
        model = load(tiny_checkpoint(method))
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01 * torch.randn_like(parameter))
            torch.save(model(**inputs_of(tiny_checkpoint(method))).logits, root / f"{method}.pt")
        model.save_pretrained(root / method)
    return {method: root / method for method in method_names()}


@pytest.fixture(scope="module")
def without_package():
    """Run a program in a process that cannot import the package."""

    def run(program, *arguments, folder, **env):
        env = {**os.environ, "HF_MODULES_CACHE": str(folder / "modules"), **env}
        env.pop("PYTHONPATH", None)
        command = [sys.executable, "-c", HIDE + program, *map(str, arguments)]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    return run


OTHER_FAMILY = """
import sys, torch
from transformers import AutoModelForImageTextToText
model = AutoModelForImageTextToText.from_pretrained(sys.argv[1], trust_remote_code=True)
with torch.no_grad():
    torch.save(model(**torch.load(sys.argv[2], weights_only=True)).logits, sys.argv[3])
"""


REMOTE = """
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor, pipeline
torch.set_num_threads(1)  # as here: the number of threads changes the last bits
image = Image.new("RGB", (40, 30), (200, 30, 90))
for folder in sys.argv[2:]:
    config = AutoConfig.from_pretrained(folder, trust_remote_code=True)
    model = AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(model).__module__.startswith("transformers_modules."), type(model)
    base = AutoModel.from_pretrained(folder, trust_remote_code=True).eval()
    assert type(base).__name__ == "AlignedLlavaModel"
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=True)
    inputs = processor(images=[image], text=[sys.argv[1]], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
        assert torch.equal(model.lm_head(base(**inputs).last_hidden_state), logits)
    answer = pipeline("image-text-to-text", model=folder, trust_remote_code=True, device="cpu")
    said = answer(images=image, text=sys.argv[1], max_new_tokens=4, do_sample=False, return_full_text=False)
    torch.save({"logits": logits, "said": said[0]["generated_text"]}, config.method + ".pt")
    model.save_pretrained("again-" + config.method)
"""


def test_saved_folders_load_with_and_without_the_package(trained, without_package, tmp_path):
    without_package(REMOTE, PROMPT, *trained.values(), folder=tmp_path)
    for method, folder in trained.items():
        remote = torch.load(tmp_path / f"{method}.pt", weights_only=True)
        logits = torch.load(folder.parent / f"{method}.pt", weights_only=True)
        assert torch.equal(remote["logits"], logits), method
        again = AutoModelForImageTextToText.from_pretrained(folder).eval()
        assert type(again) is AlignedLlavaForConditionalGeneration and again.config.method == method
        for model in (again, load(tmp_path / f"again-{method}")):
            with torch.no_grad():
                assert torch.equal(model(**inputs_of(folder)).logits, logits), method
        with CaptureLogger(logging.get_logger("transformers.pipelines.base")) as log:
            answer = pipeline("image-text-to-text", model=str(folder), device="cpu")
        assert "not supported" not in log.out
        said = answer(images=PICTURE, text=PROMPT, max_new_tokens=4, do_sample=False, return_full_text=False)
        assert remote["said"] == said[0]["generated_text"], method


def test_the_folder_holds_code_processor_template_generation_config_and_card(tiny_checkpoint, trained, tmp_path):
    load(trained["norm-gwc"]).save_pretrained(tmp_path / "again")
    for folder in (tiny_checkpoint("norm-gwc"), trained["norm-gwc"], tmp_path / "again"):
        names = {file.name for file in folder.iterdir()}
        assert {name for name in names if name.endswith(".py")} == CODE
        assert {"chat_template.jinja", "processor_config.json", "tokenizer.json", "generation_config.json"} <= names
        card = ModelCard.load(folder / "README.md")
        assert (card.data.pipeline_tag, card.data.library_name) == ("image-text-to-text", "transformers")
        assert card.data.eval_results is None and "method `norm-gwc`" in card.text
    first, last = tiny_checkpoint("norm-gwc"), tmp_path / "again"
    for name in ("chat_template.jinja", "processor_config.json", "tokenizer.json", "tokenizer_config.json"):
        assert (first / name).read_bytes() == (last / name).read_bytes()
    eos = [json.loads((folder / "generation_config.json").read_text())["eos_token_id"] for folder in (first, last)]
    assert eos[0] == eos[1]


@pytest.fixture(scope="module")
def aligned_family(tmp_path_factory):
    """A folder of an aligned model of another family, which was loaded from a folder with its processor."""
    root = tmp_path_factory.mktemp("family")
    plain = write_checkpoint("qwen2_5_vl", root / "plain")
    align(AutoModelForImageTextToText.from_pretrained(plain)).save_pretrained(root / "aligned")
    return root / "aligned"


def test_other_families_are_saved_and_loaded_like_llava(aligned_family, without_package, trained, tmp_path):
    names = {file.name for file in aligned_family.iterdir()}
    assert {file for file in names if file.endswith(".py")} == CODE | {"aligned_family.py"}
    assert {"processor_config.json", "tokenizer.json", "chat_template.jinja", "README.md"} <= names
    card = ModelCard.load(aligned_family / "README.md")
    assert "A qwen2_5_vl checkpoint of method `norm-gwc`" in card.text and 'load_aligned("path/to' in card.text
    inputs = tiny("qwen2_5_vl")[1]
    torch.save(inputs, tmp_path / "inputs.pt")
    without_package(OTHER_FAMILY, aligned_family, tmp_path / "inputs.pt", tmp_path / "logits.pt", folder=tmp_path)
    with torch.no_grad():
        expected = load_aligned(aligned_family)(**inputs).logits
    torch.testing.assert_close(torch.load(tmp_path / "logits.pt", weights_only=True), expected)
    llava = load_aligned(trained["norm-gwc"])
    assert type(llava) is AlignedLlavaForConditionalGeneration
    expected = torch.load(trained["norm-gwc"].parent / "norm-gwc.pt", weights_only=True)
    with torch.no_grad():
        assert torch.equal(llava(**inputs_of(trained["norm-gwc"])).logits, expected)


def test_a_processor_or_card_that_is_there_is_kept(tiny_checkpoint, tmp_path):
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "README.md").write_text("mine")
    load(tiny_checkpoint("norm")).save_pretrained(tmp_path)
    assert (tmp_path / "tokenizer_config.json").read_text() == "{}" and not (tmp_path / "tokenizer.json").exists()
    assert (tmp_path / "README.md").read_text() == "mine"


def test_no_local_path_is_published(tiny_backbones, tiny_checkpoint, trained, tmp_path):
    vision, text = (AutoConfig.from_pretrained(path) for path in (tiny_backbones.vision, tiny_backbones.qwen2))
    config = AlignedLlavaConfig(vision_config=vision, text_config=text)
    AlignedLlavaForConditionalGeneration(config).save_pretrained(tmp_path / "built")
    load(trained["norm"]).save_pretrained(tmp_path / "loaded")
    for folder in (tiny_checkpoint("norm-gwc"), tmp_path / "built", tmp_path / "loaded"):
        for file in [*folder.glob("*.json"), folder / "README.md"]:
            text = file.read_text()
            assert str(tiny_backbones.vision.parent) not in text and str(trained["norm"]) not in text, file


def test_hub_ids_stay_and_become_base_models(tiny_checkpoint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results/stage1").mkdir(parents=True)
    assert is_hub_id("Qwen/Qwen2.5-7B-Instruct") and is_hub_id("openai-community/gpt2")
    for path in ("", "gpt2", "results/stage1", "/models/Qwen", "./Qwen", "~/Qwen/it", "a/b/c", "..", "C:\\models"):
        assert not is_hub_id(path), path
    model = load(tiny_checkpoint("norm"))
    model.config.text_config.name_or_path = "Qwen/Qwen2.5-7B-Instruct"
    model.config.vision_config.name_or_path = "/models/siglip"
    forget_local_paths(model.config)
    model.save_pretrained(tmp_path / "model")
    assert (
        AlignedLlavaConfig.from_pretrained(tmp_path / "model").text_config.name_or_path == "Qwen/Qwen2.5-7B-Instruct"
    )
    assert ModelCard.load(tmp_path / "model/README.md").data.base_model == ["Qwen/Qwen2.5-7B-Instruct"]


def test_a_bad_folder_is_one_line(tiny_checkpoint, tiny_backbones, tmp_path):
    good = tiny_checkpoint("norm-gwc")
    weights = (good / "model.safetensors").read_bytes()
    for size in (len(weights) - 100, 50, 0):
        cut = changed_copy(good, tmp_path / f"cut-{size}")
        (cut / "model.safetensors").write_bytes(weights[:size])
        with pytest.raises(OSError, match=rf"{cut}: a weights file is damaged or cut short \(.*\); copy it again"):
            load(cut)
    foreign = changed_copy(good, tmp_path / "foreign")
    shutil.copy(tiny_backbones.qwen2 / "model.safetensors", foreign)
    wrong = {
        tiny_backbones.qwen2: "holds a qwen2 model, not aligned_llava",
        foreign: r"lm_head.weight has shape \[259, 32\], its configuration says \[320, 32\]|lacks the tensors",
        changed_copy(good, tmp_path / "norm", text_norm=-1): "text_norm must be a number above 0 or null, not -1",
        tmp_path / "cut-50": "a weights file is damaged or cut short",
    }
    for folder, message in wrong.items():
        with one_line(message) as error:
            load_strict(AlignedLlavaForConditionalGeneration, folder, dtype=torch.float32)
        assert str(folder) in str(error.value)


PUSH = """
from modeling_aligned_llava import AlignedLlavaForConditionalGeneration, load_aligned
model = AlignedLlavaForConditionalGeneration.from_pretrained(sys.argv[1])
model.push_to_hub("someone/aligned", private=True, tags=["mine"], commit_message="first")
model.push_to_hub("someone/aligned", revision="v2")
model.save_pretrained(sys.argv[2], push_to_hub=True, repo_id="someone/aligned")
load_aligned(sys.argv[3]).push_to_hub("someone/aligned", revision="family")
"""
PULL = """
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor
model = AutoModelForImageTextToText.from_pretrained("someone/aligned", trust_remote_code=True, revision="v2").eval()
processor = AutoProcessor.from_pretrained("someone/aligned", revision="v2")
torch.save(dict(model.state_dict()), "pulled.pt")
model.save_pretrained("again")
family = AutoModelForImageTextToText.from_pretrained("someone/aligned", trust_remote_code=True, revision="family")
AutoProcessor.from_pretrained("someone/aligned", revision="family")
torch.save(dict(family.state_dict()), "family.pt")
"""


def test_an_aligned_model_keeps_the_chat_template_of_an_older_folder(tmp_path):
    folder = write_checkpoint("llava", tmp_path / "old")
    template = (folder / "chat_template.jinja").read_text()
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": template}))
    (folder / "chat_template.jinja").unlink()
    align(AutoModelForImageTextToText.from_pretrained(folder), "norm").save_pretrained(tmp_path / "aligned")
    assert AutoProcessor.from_pretrained(tmp_path / "aligned").chat_template == template


def test_weights_of_an_earlier_upload_do_not_stay_beside_others():
    """A single file would be read instead of shards, and old adapters put onto a merged model."""
    code = """
from modeling_aligned_llava.hub_folder import upload
for names in ("model.safetensors", "adapter_config.json", "README.md"), ("model-1.safetensors",):
    upload(dict.fromkeys(names, b"{}"), "someone/aligned")
"""
    with HubStandIn() as hub:
        hub.files["main"]["checkpoints/model.safetensors"] = b"of somebody else"
        done = subprocess.run([sys.executable, "-c", code], env=hub.env, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert hub.files["main"].keys() == {
        "README.md",
        "checkpoints/model.safetensors",
        "model-1.safetensors",
    }


@pytest.mark.slow
def test_push_to_hub_and_back(trained, aligned_family, without_package, tmp_path):
    folder = trained["norm-gwc"]
    with HubStandIn() as hub:
        hub.faults.append(Fault("PUT /lfs", "503"))  # the client tries again by itself
        command = [
            sys.executable,
            "-c",
            "import sys\n" + PUSH,
            str(folder),
            str(tmp_path / "saved"),
            str(aligned_family),
        ]
        env = hub.env | {"PYTHONPATH": str(REPOSITORY), "HF_HOME": str(tmp_path / "cache")}
        done = subprocess.run(command, env=env, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-3000:]
        assert TOKEN not in done.stdout + done.stderr
        assert sum(request.startswith("PUT /lfs") for request in hub.requests) >= 2
        without_package(PULL, folder=tmp_path, **{k: v for k, v in env.items() if k.startswith("HF_")})
    assert hub.repositories["someone/aligned"]["visibility"] == "private"
    kept = [file for pattern in PROCESSOR_FILES for file in folder.glob(pattern)]
    assert {file.name for file in kept} | CODE < set(hub.files["v2"])
    assert all(hub.files["main"][file.name] == file.read_bytes() for file in kept)
    assert hub.files["main"]["model.safetensors"] == (folder / "model.safetensors").read_bytes()
    card = ModelCard(hub.files["main"]["README.md"].decode())
    assert card.data.eval_results is None and "mine" in card.data.tags
    assert 'from_pretrained("someone/aligned"' in card.text
    pulled = torch.load(tmp_path / "pulled.pt", weights_only=True)
    here = load(folder).state_dict()
    assert [name for name, tensor in here.items() if not torch.equal(tensor, pulled[name])] == []
    family = torch.load(tmp_path / "family.pt", weights_only=True)
    here = load_aligned(aligned_family).state_dict()
    assert [name for name, tensor in here.items() if not torch.equal(tensor, family[name])] == []
    again = tmp_path / "again"
    assert all((again / file.name).read_bytes() == file.read_bytes() for file in kept)
    assert json.loads((again / "config.json").read_text())["auto_map"]["AutoConfig"].startswith("configuration_")


def test_the_loading_page_works_as_written(trained, tmp_path, monkeypatch, capsys):
    (code,) = blocks(REPOSITORY / "docs/loading.md", "python")
    monkeypatch.chdir(tmp_path)
    PICTURE.save("image.jpg")
    Path("path/to").mkdir(parents=True)
    Path("path/to/checkpoint").symlink_to(trained["norm-gwc"])
    capsys.readouterr()
    exec(code, {})  # noqa: S102
    assert capsys.readouterr().out.strip()
