"""An answer is asked for again after an upgrade, on another kind of device, or when the answering code changes."""

import shutil
from types import SimpleNamespace

import pytest
from transformers import AutoProcessor

from eval.plan.job import SCORING
from modeling_aligned_llava.harness.provenance import ADAPTERS, producer, producer_digest
from modeling_aligned_llava.loading import fingerprint
from tests import REPOSITORY
from tests.modeling_aligned_llava.harness.test_lmms_eval_model import adapter, requests


@pytest.mark.parametrize(
    ("modules", "file", "counts"),
    [
        (ADAPTERS, "modeling_aligned_llava/harness/lmms_eval_model.py", True),
        (ADAPTERS, "modeling_aligned_llava/inference/prompt.py", True),
        (ADAPTERS, "modeling_aligned_llava/norm_alignment.py", True),  # by relative imports
        (ADAPTERS, "modeling_aligned_llava/diagnostics/profile.py", False),
        (SCORING, "eval/data/benchmarks.py", True),  # by another module
        (SCORING, "eval/score/items.py", True),
        (SCORING, "eval/report/answer.py", False),
    ],
)
def test_code_that_decides_counts_and_other_code_and_words_do_not(modules, file, counts, tmp_path, monkeypatch):
    for room in ("modeling_aligned_llava", "eval"):
        shutil.copytree(REPOSITORY / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(
        fingerprint, "find_spec", lambda room: SimpleNamespace(origin=str(tmp_path / room / "__init__.py"))
    )
    read, copy = fingerprint.hash_code.__wrapped__, tmp_path / file
    before = read(*modules)
    copy.write_text(copy.read_text() + "\n# a comment\n")
    assert read(*modules) == before == fingerprint.hash_code(*modules)
    copy.write_text(copy.read_text() + "\nADDED = 1\n")
    assert (read(*modules) != before) is counts


def test_the_package_that_resizes_images_counts(tiny_llava):
    processor = AutoProcessor.from_pretrained(tiny_llava)
    assert processor.image_processor.backend in producer("cpu")


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
    monkeypatch.setattr(fingerprint.metadata, "version", lambda package: "99.0")
    assert ask(tiny_llava, log) == 2 and ask(tiny_llava, log) == 2
