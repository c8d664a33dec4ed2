"""Other versions of transformers: a folder gives what it gives with the pinned set, or one line says what is wrong;
at both ends of the range of training, two steps and a score do too.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from modeling_aligned_llava import align
from tests import REPOSITORY
from tests.modeling_aligned_llava.loaded import load
from tests.modeling_aligned_llava.tiny_families import tiny
from tests.train.conftest import stage_commands, write_data
from tests.train.stage_results import lines, weights


pytestmark = [pytest.mark.slow, pytest.mark.campaign]

# Both ends of the range, its middle, and the last before names or code that we use changed (5.6, 5.13).
BEFORE_TOKENIZERS_23 = ("huggingface-hub==1.33.0", "tokenizers==0.22.2")
VERSIONS = {
    "5.0.0": BEFORE_TOKENIZERS_23,
    "5.5.4": BEFORE_TOKENIZERS_23,
    "5.12.1": BEFORE_TOKENIZERS_23,
    "5.19.0": (),
    "5.20.0": (),
    "5.24.0": (),
}
# The lowest and the newest transformers and trl of pyproject.toml's extras.
TRAINED = {"5.20.0": "1.16.0", "5.24.0": "1.16.0"}
TOO_OLD = {"4.57.6": ("huggingface-hub==0.36.2", "tokenizers==0.22.2")}

SERVE = """
import importlib.util, pathlib, sys
import torch
from PIL import Image
from transformers import AutoModelForImageTextToText, AutoProcessor

found = importlib.util.find_spec("modeling_aligned_llava")
assert found is None or found.origin is None  # an editable install leaves a folder with data alone
source, target = map(pathlib.Path, sys.argv[1:])
prompt = "<|im_start|>user\\n<image>\\nwhat?<|im_end|>\\n<|im_start|>assistant\\n"

def load(folder):
    return AutoModelForImageTextToText.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32).eval()

if (source / "inputs.pt").exists():
    inputs = torch.load(source / "inputs.pt", weights_only=True)
else:
    processor = AutoProcessor.from_pretrained(source, trust_remote_code=True)
    inputs = dict(processor(images=[Image.new("RGB", (40, 30), (200, 30, 90))], text=[prompt], return_tensors="pt"))
model = load(source)
said = model.generate(**inputs, max_new_tokens=8, do_sample=False)
loss = model.train()(**inputs, labels=inputs["input_ids"]).loss
loss.backward()
torch.optim.SGD(model.parameters(), lr=0.1).step()
model.eval().save_pretrained(target)
with torch.no_grad():
    trained = model(**inputs).logits
    assert torch.equal(load(target)(**inputs).logits, trained)
torch.save(inputs, target / "inputs.pt")
torch.save({"said": said, "loss": loss.detach(), "trained": trained}, target / "results.pt")
"""

LOAD = """
import sys
from transformers import AutoModelForImageTextToText
try:
    AutoModelForImageTextToText.from_pretrained(sys.argv[1], trust_remote_code=True)
except (ImportError, OSError) as error:
    print(error)
"""

ALIGN = """
import sys
from transformers import InternVLForConditionalGeneration
from modeling_aligned_llava import align
plain, aligned = sys.argv[1:]
align(InternVLForConditionalGeneration.from_pretrained(plain)).save_pretrained(aligned)
"""

TRAIN = """
import json, sys
from transformers import __version__
from modeling_aligned_llava.harness.lm_eval_model import AlignedLlavaLM
from train.stage import run_stage
folder, *arguments = sys.argv[1:]
run_stage(arguments)
rows = [(None, [5, 6, 7, 8], [9, 10]), (None, [5, 6, 7, 8], [11]), (None, [5, 6, 3], [9])]  # they share a prefix
print(json.dumps([__version__, AlignedLlavaLM(folder)._loglikelihood_tokens(rows, disable_tqdm=True)]))
"""


class Environment:
    """Some packages of their own, laid over those of this Python; without ours, unless it is on `path`."""

    def __init__(self, root: Path, packages=(), over=True):
        venv.create(root, symlinks=True)
        self.root, self.python = root, root / "bin/python"
        self.variables = {**os.environ, "PYTHONPATH": "", "HF_MODULES_CACHE": str(root / "modules")}
        layout = {"base": str(root), "platbase": str(root)}
        self.site = Path(sysconfig.get_path("purelib", "venv", layout))
        if over:
            (self.site / "pinned.pth").write_text(sysconfig.get_path("purelib"))
        if packages:
            self.pip("install", *packages)

    def pip(self, *words) -> None:
        pip = [sys.executable, "-m", "pip", "--python", str(self.python), *words, "--quiet"]
        done = subprocess.run(pip, capture_output=True, text=True)  # noqa: S603
        if done.returncode:
            pytest.skip(f"pip {' '.join(words[:2])}: {done.stderr.strip().splitlines()[-1]}")

    def run(self, program, *arguments, path="") -> str:
        env = {**self.variables, "PYTHONPATH": str(path)}
        command = [str(self.python), "-c", program, *map(str, arguments)]
        done = subprocess.run(command, cwd=self.root, env=env, capture_output=True, text=True)  # noqa: S603
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout


@pytest.fixture(scope="module")
def pinned(tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("pinned"))


@pytest.fixture(scope="module", params=VERSIONS)
def version(request):
    return request.param


@pytest.fixture(scope="module")
def other(version, tmp_path_factory):
    return Environment(tmp_path_factory.mktemp("other"), (f"transformers=={version}", *VERSIONS[version]))


@pytest.fixture(scope="module")
def trained(tiny_backbones, tmp_path_factory):
    """`trained(environment)`: two steps of stage 1 there: version and scores, log, ledger, weights."""
    data = write_data(tmp_path_factory.mktemp("data"))

    def train(environment: Environment) -> tuple[str, list, list, list, dict[str, torch.Tensor]]:
        root = tmp_path_factory.mktemp("trained")
        settings = {"max_steps": 2, "save_steps": 1, "max_grad_norm": 1e-2, "clip_by_part": "true"}
        settings["data_cache"] = root / "cache"
        arguments = stage_commands(tiny_backbones, data)(1, "norm-gwc", root, **settings)
        folder = root / "norm-gwc/stage1"
        version, scores = json.loads(environment.run(TRAIN, folder, *arguments, path=REPOSITORY).splitlines()[-1])
        return version, scores, lines(folder), lines(folder, "gradients.jsonl"), weights(folder)

    return train


@pytest.fixture(scope="module")
def folders(tiny_checkpoint, tmp_path_factory):
    """A LLaVA whose every weight has left its start, and a model of another family, plain and aligned."""
    root = tmp_path_factory.mktemp("folders")
    llava, (family, inputs) = load(tiny_checkpoint("norm-gwc")), tiny("internvl")
    with torch.no_grad():
        for parameter in llava.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    llava.save_pretrained(root / "llava")
    family.save_pretrained(root / "plain")
    align(family).save_pretrained(root / "internvl")
    torch.save(inputs, root / "internvl/inputs.pt")
    return root


@pytest.fixture(scope="module")
def results(pinned, folders, tmp_path_factory):
    """What the pinned set makes of a folder, once for each."""
    made = {}

    def results(folder):
        if folder not in made:
            target = tmp_path_factory.mktemp("results")
            pinned.run(SERVE, folder, target)
            made[folder] = torch.load(target / "results.pt", weights_only=True)
        return made[folder]

    return results


@pytest.mark.parametrize("name", ["llava", "internvl"])
def test_a_folder_gives_the_same_where_the_package_is_not(name, other, folders, results, tmp_path):
    other.run(SERVE, folders / name, tmp_path / "saved")
    found = torch.load(tmp_path / "saved/results.pt", weights_only=True)
    expected = results(folders / name)
    assert torch.equal(found["said"], expected["said"])
    torch.testing.assert_close(found, expected)
    # The folder that it saved gives there what it gives here.
    other.run(SERVE, tmp_path / "saved", tmp_path / "again")
    again = torch.load(tmp_path / "again/results.pt", weights_only=True)
    torch.testing.assert_close(again, results(tmp_path / "saved"))


@pytest.mark.parametrize("name", ["llava", "internvl"])
def test_a_folder_without_its_norm_is_one_line(name, other, folders, tmp_path):
    weights = load_file(folders / name / "model.safetensors")
    (gain,) = (key for key in weights if re.search(r"projector.*\.(alignment_)?norm\.weight$", key))
    del weights[gain]
    holed = shutil.copytree(folders / name, tmp_path / "holed")
    save_file(weights, holed / "model.safetensors", {"format": "pt"})
    (said,) = other.run(LOAD, holed).splitlines()
    assert f"{holed} lacks the tensor " in said and "norm.weight (1 in all); copy the weights again" in said


def test_the_package_aligns_alike(other, folders, results, tmp_path):
    aligned = tmp_path / "internvl"
    other.run(ALIGN, folders / "plain", aligned, path=REPOSITORY)
    shutil.copy(folders / "internvl/inputs.pt", aligned)
    torch.testing.assert_close(results(aligned), results(folders / "internvl"))


def test_it_trains_and_scores_alike(version, other, pinned, trained):
    if version not in TRAINED:
        pytest.skip("below the range of the extras")
    other.pip("install", f"trl=={TRAINED[version]}")
    running, *results = trained(other)
    assert running == version
    torch.testing.assert_close(results, trained(pinned)[1:], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["llava", "internvl"])
def test_below_the_range_one_line_names_the_version_needed(name, folders, tmp_path):
    ((version, others),) = TOO_OLD.items()
    (said,) = Environment(tmp_path, (f"transformers=={version}", *others)).run(LOAD, folders / name).splitlines()
    assert "transformers>=5.0 is required" in said and f"found transformers=={version}" in said
