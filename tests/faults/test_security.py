"""Some attacks of the campaign, with another seed."""

import random

import pytest

from tests.faults import untrusted_files as files
from tests.faults import untrusted_words as words


ATTACKS = (files.weights, files.remote_code, files.archives, files.image_names, words.pages)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_nothing_is_let_in(attack, tmp_path):
    assert all(attack(random.Random("fast"), tmp_path).values())
