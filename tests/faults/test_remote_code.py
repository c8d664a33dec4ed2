"""Code of a checkpoint runs with the flag alone; from the Hub, at a pinned commit alone."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from modeling_aligned_llava.diagnostics.instruments import models as diagnostics
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inference.generator import load_generator
from modeling_aligned_llava.loading.checkpoint import load_part
from tests.benchmark_stand_in import write_llava
from tests.faults.harness import nothing_runs
from tests.one_line import one_line


LOADERS = {
    "generator": lambda path, flag: load_generator(path, trust_remote_code=flag),
    "model": diagnostics.load,
    "language": diagnostics.load_language,
    "encoder": diagnostics.load_encoder,
    "tokenizer": lambda path, flag: load_part(AutoTokenizer, path, trust_remote_code=flag),
}
OWN, OF_THE_HUB = "evil.Evil", "someone/evil--evil.Evil"


@pytest.fixture
def ran(tmp_path) -> Path:
    """Made by the code."""
    return tmp_path / "ran"


@pytest.fixture
def model(tmp_path, ran, monkeypatch):
    """`model(reference)` -> a checkpoint whose files name that code; nothing asks on the terminal."""
    folder = write_llava(tmp_path / "model")
    code = f"open({str(ran)!r}, 'w').close()\nfrom transformers import LlavaConfig\nclass Evil(LlavaConfig): pass\n"
    (folder / "evil.py").write_text(code)

    def asked(*_):
        pytest.fail("asked")

    def name_code(reference: str) -> str:
        classes = {"AutoConfig": reference, "AutoProcessor": reference, "AutoTokenizer": [reference, reference]}
        for name in ("config.json", "processor_config.json", "tokenizer_config.json"):
            path = folder / name
            if path.exists():
                content = {**json.loads(path.read_text()), "auto_map": classes, "model_type": "evil"}
                path.write_text(json.dumps(content))
        return str(folder)

    monkeypatch.setattr("builtins.input", asked)
    return name_code


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_nothing_runs(load, model, ran):
    with nothing_runs(ran):
        with suppress(UserError):  # some can do without the code
            load(model(OWN), False)
        for source in ("someone/evil", "someone/evil@main", f"someone/evil@{'c' * 39}"):
            with one_line("pinned commit"):
                load(source, True)
        with one_line("which is not pinned"):
            load(model(OF_THE_HUB), True)


def test_with_the_flag_it_runs(model, ran):
    with suppress(Exception):  # it is no model
        load_generator(model(OWN), trust_remote_code=True)
    assert ran.exists()
