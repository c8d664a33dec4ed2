"""What importing the package imports, and when it registers the model."""

import subprocess
import sys

import pytest


def run_python(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


@pytest.mark.parametrize("module", ["", ".errors", ".methods", ".loading.files"])
def test_no_library_that_takes_seconds_is_imported(module):
    listed = f"import modeling_aligned_llava{module}, sys; print({{'torch', 'transformers'}} & sys.modules.keys())"
    assert run_python(listed) == "set()"


def test_the_first_name_registers_the_model_with_the_auto_classes():
    program = """
from modeling_aligned_llava import method_names
from transformers import AutoConfig, AutoModelForImageTextToText
config = AutoConfig.for_model("aligned_llava")
print(AutoModelForImageTextToText._model_mapping[type(config)].__name__)
"""
    assert run_python(program).endswith("AlignedLlavaForConditionalGeneration")


def test_an_unknown_name_is_an_attribute_error():
    assert run_python("import modeling_aligned_llava as package; print(hasattr(package, 'unknown'))") == "False"
