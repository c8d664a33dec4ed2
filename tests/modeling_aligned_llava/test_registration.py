"""Importing the package is cheap, and registers the model in whatever order the imports come."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


ROOT = Path(__file__).parents[2]
KNOWN = """
from transformers import AutoConfig, AutoModel, AutoModelForImageTextToText, AutoProcessor
config_class = type(AutoConfig.for_model("aligned_llava"))
assert AutoModel._model_mapping[config_class].__name__ == "AlignedLlavaModel"
assert AutoModelForImageTextToText._model_mapping[config_class]._auto_class == "AutoModelForImageTextToText"
import modeling_aligned_llava
assert config_class is modeling_aligned_llava.AlignedLlavaConfig
import sys
assert not [finder for finder in sys.meta_path if type(finder).__name__ == "_AfterImport"]
"""


def run(program: str) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=env, check=True)  # noqa: S603


def test_the_light_parts_do_not_wait_for_torch():
    run(
        "import sys, modeling_aligned_llava as m\n"
        "from modeling_aligned_llava import answer_log, chat_templates, errors\n"
        "assert 'norm-gwc' in m.method_names() and chat_templates.chat_template('plain')\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )


@pytest.mark.parametrize(
    "first",
    [
        "import modeling_aligned_llava",
        "from modeling_aligned_llava.configuration_aligned_llava import AlignedLlavaConfig",
    ],
)
def test_the_auto_classes_know_the_model_after(first):
    run(f"{first}\n{KNOWN}")


def test_an_unknown_name_is_an_attribute_error():
    import modeling_aligned_llava

    with pytest.raises(AttributeError, match="has no attribute 'AlignedLava'"):
        modeling_aligned_llava.AlignedLava  # noqa: B018
