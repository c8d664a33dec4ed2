"""Every program that takes a model, given something that is none: one line, and no traceback."""

import runpy
import shutil
import sys

import pytest

from tests import REPOSITORY
from tests.modeling_aligned_llava.tiny_families import write_checkpoint, write_decoder


ON_IMAGES = ("profile", "attention", "gradients", "vocabulary", "encoders")
SFT = ["--config", "configuration/train/finetune/full.yaml", "--method", "norm", "--data_path", "ROWS"]
SFT += ["--image_folder", "IMAGES", "--output_dir", "OUT", "--model_name_or_path", "MODEL", "--bf16", "false"]
PROGRAMS = {
    **{f"eval.diagnostics {name}": [name, "MODEL", "--images", "IMAGES"] for name in ON_IMAGES},
    **{f"eval.diagnostics {name}": [name, "MODEL"] for name in ("embeddings", "parameters")},
    "eval.diagnostics compare": ["compare", "MODEL", "MODEL"],
    "eval.suite": ["--run", "OUT", "--data", "IMAGES", "--models", "a=MODEL"],
    "train.sft": SFT,
    "train.preview": SFT,
    "train.preflight": [*SFT, "--no-measure"],
    "modeling_aligned_llava.assembly": ["--vision-tower", "MODEL", "--language-model", "MODEL", "--out", "OUT"],
}
SERVED = {  # they look at text embeddings or at a vision tower alone
    "text-only": "eval.diagnostics embeddings",
    "no processor": "eval.diagnostics embeddings",
    "vision tower": "eval.diagnostics encoders",
}


@pytest.fixture(scope="module")
def wrong(tmp_path_factory):
    """`wrong(what)` -> a folder that holds no model of the kind that the programs take."""
    root = tmp_path_factory.mktemp("wrong")

    def make(what):
        folder = root / what
        if not folder.exists():
            if what == "empty":
                folder.mkdir()
            elif what == "text-only":
                write_decoder("qwen2", folder)
            elif what == "vision tower":
                shutil.copytree(REPOSITORY / "tinyworld/backbones/vision", folder)
            else:
                write_checkpoint("qwen2_vl", folder)
                for file in folder.glob("*process*.json"):
                    file.unlink()
        return folder

    return make


@pytest.mark.parametrize("what", ["empty", "text-only", "vision tower", "no processor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_it_is_one_line(program, what, wrong, tiny_data, tmp_path, monkeypatch, capsys):
    places = {"MODEL": wrong(what), "OUT": tmp_path / "out"}
    places |= {"IMAGES": tiny_data / "images", "ROWS": tiny_data / "stage2.json"}
    words = [str(places.get(word, word.replace("=MODEL", f"={places['MODEL']}"))) for word in PROGRAMS[program]]
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "argv", [program, *words])
    if SERVED.get(what) == program:
        runpy.run_module(program.split()[0], run_name="__main__")
        return
    with pytest.raises(SystemExit) as ended:
        runpy.run_module(program.split()[0], run_name="__main__")
    said = capsys.readouterr()
    last = (said.out if program == "train.preflight" else said.err).strip().splitlines()[-1]
    assert ended.value.code == 1 and last.startswith(("error: ", "cannot run: ")), said.out + said.err
