"""Long work on toy models: memory, open files and threads of the process stay flat."""

import random
import sys
import time
from contextlib import suppress

import numpy as np
import psutil
import pytest

from eval.demo.models import load_models
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.inference.generator import load_generator
from tests import REPOSITORY
from tests.benchmark_stand_in import image_of


REQUESTS, STEPS, QUESTIONS = 10_000, 2_000, 500
BATCH = 50
WARM_UP = 0.3  # share of the work in which caches fill
MOST_GROWTH = 0.02  # of the resident memory

pytestmark = [pytest.mark.slow, pytest.mark.campaign]


def measured(process: psutil.Process) -> tuple[int, int, int]:
    """Resident bytes, open files and threads."""
    with process.oneshot():
        return process.memory_info().rss, process.num_fds(), process.num_threads()


def assert_flat(rows: list[tuple[int, int, int]]) -> None:
    """Compare the quarter after the warm-up with the last one; medians leave out what comes and goes."""
    settled = np.array(rows[int(len(rows) * WARM_UP) :])
    quarter = len(settled) // 4
    first, last = np.median(settled[:quarter], axis=0), np.median(settled[-quarter:], axis=0)
    assert last[0] < first[0] * (1 + MOST_GROWTH), f"memory grew from {first[0] / 1e6:.0f} to {last[0] / 1e6:.0f} MB"
    assert last[1] <= first[1], f"{last[1] - first[1]:.0f} more open files"
    assert last[2] <= first[2], f"{last[2] - first[2]:.0f} more threads"


def test_requests_of_an_evaluation(tiny_llava):
    """An image and a question of random length each."""
    generator, rng, rows = load_generator(str(tiny_llava)), random.Random(0), []
    for _ in range(REQUESTS // BATCH):
        words = [" ".join(rng.choices(("red", "box", "left"), k=rng.randint(1, 12))) for _ in range(BATCH)]
        prompts = [generator.render(text, images=1) for text in words]
        images = [[image_of(rng.randint(0, 50))] for _ in words]
        assert len(generator.answer(prompts, images, max_new_tokens=4)) == BATCH
        rows.append(measured(psutil.Process()))
    assert_flat(rows)


def test_questions_to_the_demo(tiny_llava):
    """Each with its own image, their answers streamed."""
    (model,) = load_models({"toy": str(tiny_llava)}, "cpu")
    rows = []
    for number in range(QUESTIONS):
        asked = ImageQuestion(str(number), lambda n=number: image_of(n % 50), "red box left")
        assert list(model.stream(asked, 8))[-1].ids
        rows.append(measured(psutil.Process()))
    assert_flat(rows)


def test_steps_of_training(stage_arguments, tmp_path):
    settings = {"max_steps": STEPS, "save_steps": STEPS // 10, "logging_steps": 10}
    command = [sys.executable, "-m", "train.sft", *stage_arguments(1, "norm-gwc", tmp_path, **settings)]
    rows = []
    process = psutil.Popen(command, cwd=REPOSITORY)
    log = tmp_path / "norm-gwc" / "stage1" / "log.jsonl"
    while process.poll() is None:
        with suppress(psutil.Error):  # it may have ended just now
            rows += [measured(process)] if log.exists() else []  # imports are over
        time.sleep(0.1)
    assert process.returncode == 0
    assert_flat(rows)
