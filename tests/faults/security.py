"""What comes from elsewhere runs nothing, reaches nothing outside its folder, and is shown as text."""

import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.faults import untrusted_files as files
from tests.faults import untrusted_words as words
from tests.faults.campaign import Campaign, Case


WORK: tuple[Callable[[random.Random, Path], dict[str, int]], ...] = (
    *(files.weights, files.states, files.remote_code, files.yaml_and_templates, files.archives, files.image_names),
    *(words.shells, words.pages, words.tokens, words.demo),
)


def run(work: Callable[[random.Random, Path], dict[str, int]], seed: str, folder: Path) -> dict[str, int]:
    return work(random.Random(seed), folder)


def cases(seed: int) -> Iterator[Case]:
    for work in WORK:
        yield Case(work.__name__, functools.partial(run, work, f"{seed} {work.__name__}"))


CAMPAIGN = Campaign("security", cases)
