"""The demo as a Hugging Face Space: a folder with the code, the pictures to pick from and the models, ready to push.

Checkpoint folders are copied into it, as they would be published; models on the Hub stay there.
"""

import platform
import shutil
import tomllib
from functools import partial
from pathlib import Path

import gradio as gr

from eval.data.image_sample import Picture
from eval.demo.app import build
from eval.demo.arms import load_arms
from eval.run.device import resolve_device
from eval.run.files import read_json, write_json, write_text
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.checkpoint import check_source
from modeling_aligned_llava.loading.images import open_image


REPOSITORY = Path(__file__).resolve().parents[2]
CODE = ("modeling_aligned_llava", "configuration", "eval")
APP = '''"""Made by `python -m eval.demo --write-space`; what it shows is in space.json."""

from pathlib import Path

from eval.demo.app import serve
from eval.demo.space import space_page


demo = space_page(Path(__file__).parent)
if __name__ == "__main__":
    serve(demo)
'''
CARD = """---
title: Norm-aligned LLaVA
sdk: gradio
sdk_version: {gradio}
python_version: "{python}"
app_file: app.py
license: apache-2.0
---

# Norm-aligned LLaVA

{models}, side by side: the answer to a question about a picture, where each model looks when it says a word, and the
norms of its visual and text tokens by layer.
"""


def write_space(
    out: Path, models: dict[str, str], examples: list[Picture], most: int, trust_remote_code: bool = False
) -> None:
    """Write the folder of a Space.

    Args:
        out: the folder; it must not exist.
        models: name -> checkpoint folder or Hub id.
        examples: pictures to pick from.
        most: tokens that an answer may have.
        trust_remote_code: whether the Space runs code that lies in the models' repositories.

    Raises:
        UserError: `out` exists, or a model is neither a Hub id nor a folder that could be published.
    """
    from eval.report.push import published_files  # brings in what a running Space has no use for

    if out.exists():
        raise UserError(f"--write-space: {out} already exists; remove it or choose another folder")
    published: dict[str, dict[str, Path | bytes]] = {}
    for name, source in models.items():
        check_source(source, f"--models {name}")
        if Path(source).is_dir():
            published[name] = published_files(Path(source))
    for name in CODE:
        shutil.copytree(REPOSITORY / name, out / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, files in published.items():
        for file, content in files.items():
            target = out / "models" / name / file
            target.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                target.write_bytes(content)
            else:
                shutil.copyfile(content, target)
    questions = {}
    for number, picture in enumerate(examples):
        file = out / "examples" / f"{number}.png"
        file.parent.mkdir(exist_ok=True)
        picture.open().save(file)
        questions[file.name] = picture.question
    sources = {name: f"models/{name}" if name in published else source for name, source in models.items()}
    settings = {"models": sources, "examples": questions, "most": most, "trust_remote_code": trust_remote_code}
    write_json(out / "space.json", settings)
    write_text(out / "app.py", APP)
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"]["demo"]]
    write_text(out / "requirements.txt", "\n".join(needed) + "\n")
    python = ".".join(platform.python_version_tuple()[:2])
    write_text(out / "README.md", CARD.format(gradio=gr.__version__, python=python, models=", ".join(models)))


def space_page(folder: Path) -> gr.Blocks:
    """The page that the Space in `folder` shows."""
    settings = read_json(folder / "space.json")
    inside = {name: folder / source for name, source in settings["models"].items()}
    models = {
        name: str(inside[name]) if inside[name].is_dir() else source for name, source in settings["models"].items()
    }
    examples = [
        Picture(name, partial(open_image, folder / "examples" / name), question)
        for name, question in settings["examples"].items()
    ]
    arms = load_arms(models, resolve_device("auto"), settings["trust_remote_code"])
    return build(arms, examples, settings["most"])
