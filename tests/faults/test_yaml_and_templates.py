"""YAML from elsewhere makes no objects, and a chat template reaches no Python."""

from contextlib import suppress

import pytest

from eval.data import mirror
from eval.data.benchmarks import BY_KEY
from modeling_aligned_llava.inference.generator import load_generator
from tests.faults.harness import nothing_runs
from train.arguments.parse import parse_arguments
from train.data.sources import read_sources


TEMPLATES = (
    "{{{{ ''.__class__.__mro__[1].__subclasses__() }}}}",
    "{{{{ self.__init__.__globals__.__builtins__.open('{}', 'w') }}}}",
    "{{{{ cycler.__init__.__globals__.os.system('touch {}') }}}}",
)

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


@pytest.mark.parametrize("function", ["apply:os.system", "new:os.system", "apply:subprocess.call"])
def test_yaml(function, tmp_path):
    evil = f"!!python/object/{function} [\"touch '{tmp_path}/ran'\"]"
    recipe, mixture = tmp_path / "recipe.yaml", tmp_path / "mixture.yaml"
    dataset = tmp_path / "mirror" / BY_KEY["pope"].folder
    dataset.mkdir(parents=True)
    recipe.write_text(f"output_dir: {evil}\n")
    mixture.write_text(f"- {evil}\n")
    (dataset / "README.md").write_text(f"---\nconfigs: {evil}\n---\n")
    with nothing_runs(tmp_path / "ran"):
        with suppress(Exception):
            parse_arguments(["--config", str(recipe), "--method", "norm"])
        with suppress(Exception):
            read_sources(str(mixture), None)
        with suppress(Exception):
            mirror.count_rows(tmp_path / "mirror", BY_KEY["pope"])


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_chat_template(template, tiny_llava, tmp_path):
    generator = load_generator(str(tiny_llava))
    generator.processor.chat_template = template.format(tmp_path / "ran")
    text = ""
    with nothing_runs(tmp_path / "ran"), suppress(Exception):
        text = generator.render("What?", images=1)
    assert "class" not in text
