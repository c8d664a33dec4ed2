"""An answer is asked for again after an upgrade, on another kind of device, or when the answering code changes."""

from pathlib import Path

from transformers import AutoProcessor

from modeling_aligned_llava.harness import provenance
from modeling_aligned_llava.harness.provenance import producer, producer_digest
from tests import REPOSITORY
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import adapter, requests
from tests.test_architecture import PLUGIN, imported_files


ADAPTERS = [Path(PLUGIN, "harness", f"{name}_model.py") for name in ("lmms_eval", "lm_eval")]


def test_all_code_that_decides_an_answer_is_hashed():
    found, waiting = set(), [*ADAPTERS, Path(PLUGIN, "__init__.py")]
    while waiting:
        file = waiting.pop()
        if file not in found and file.parts[0] == PLUGIN:
            found.add(file)
            waiting += imported_files(file)
    assert found <= {file.relative_to(REPOSITORY) for file in provenance.answering_files()}


def test_the_package_that_resizes_images_counts(tiny_llava):
    processor = AutoProcessor.from_pretrained(tiny_llava)
    assert processor.image_processor.backend in producer("cpu")


def test_code_counts_and_words_do_not():
    source = '"""Purpose."""\n\ndef answer(x):\n    """Say it."""\n    return x + 1  # one more\n'
    same = "def answer(x): return (x + 1)\n"
    assert provenance._instructions(source) == provenance._instructions(same)
    assert provenance._instructions(source) != provenance._instructions(same.replace("1", "2"))


def test_devices_count_by_kind():
    assert producer("cuda:0") == producer("cuda:7")
    assert producer_digest("cuda") != producer_digest("cpu")


def ask(folder, log):
    """One question to a fresh adapter -> the number of lines in its log."""
    model = adapter(folder, [()], answer_log=str(log))
    model.generate_until(requests([("Why?", [])], {"until": [], "max_new_tokens": 2}))
    return len(log.read_text().splitlines())


def test_after_an_upgrade_a_question_is_asked_again(tiny_llava, tmp_path, monkeypatch):
    log = tmp_path / "answers.jsonl"
    assert ask(tiny_llava, log) == 1 and ask(tiny_llava, log) == 1
    monkeypatch.setattr(provenance.metadata, "version", lambda package: "99.0")
    assert ask(tiny_llava, log) == 2 and ask(tiny_llava, log) == 2
