"""Every family that the documentation names: batches of 1 and of 16 answer as `model.generate` does row by row."""

from importlib.util import find_spec

import pytest

from tests.modeling_aligned_llava.harness.families_table import image_row, text_row, written_rows
from tests.modeling_aligned_llava.harness.tiny_checkpoints import DECODERS, WRITERS, write_checkpoint, write_decoder


def needs(name):
    missing = name == "smolvlm" and find_spec("num2words") is None
    return pytest.param(name, marks=pytest.mark.skipif(missing, reason="its processor needs num2words"))


def assert_told(messages, name, row):
    """A family that falls back says so, with one reason, and no other does."""
    assert len(set(messages)) == row.count("falls back")
    assert all(message.startswith(f"{name} reads no shared prefixes: its ") for message in messages)


@pytest.mark.parametrize("name", map(needs, WRITERS))
def test_a_family_answers_as_the_documentation_says(name, tmp_path, caplog):
    row = image_row(name, write_checkpoint(name, tmp_path / name))
    assert row in written_rows()
    assert_told([message for message in caplog.messages if "shared" in message], name, row)


@pytest.mark.parametrize("name", DECODERS)
def test_a_language_model_scores_as_the_documentation_says(name, tmp_path, caplog):
    row = text_row(name, write_decoder(name, tmp_path / name))
    assert row in written_rows()
    assert_told([message for message in caplog.messages if "shared" in message], name, row)


def test_the_documentation_names_no_other_family():
    named = [row.split("|")[1].strip() for row in written_rows()]
    assert named == [*WRITERS, *(f"{name} (text only)" for name in DECODERS)]
