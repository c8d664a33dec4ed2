"""Long work on toy models: memory, open files and threads of the process stay flat."""

import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image
from scipy.stats import linregress, t

from eval.demo.models import load_models
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.inference.generator import load_generator
from tests import REPOSITORY
from tests.benchmark_stand_in import image_of, write_llava
from tests.faults.campaign import Campaign, Case


REQUESTS, STEPS, QUESTIONS = 10_000, 2_000, 500
BATCH = 50
WARM_UP = 0.3  # share of the time in which caches fill
MOST_GROWTH = 0.02  # of the resident memory, from the end of the warm-up to the end
EVERY = 0.1  # seconds between measurements


class Watch:
    """Measurements of a process, one each tenth of a second: time, resident MB, open files, threads."""

    def __init__(self, process: psutil.Process) -> None:
        self.process, self.rows = process, list[tuple[float, float, int, int]]()
        self.ended = threading.Event()

    def measure(self) -> None:
        while not self.ended.wait(EVERY):
            with suppress(psutil.Error), self.process.oneshot():  # it may have ended
                memory, files, threads = (
                    self.process.memory_info().rss,
                    self.process.num_fds(),
                    self.process.num_threads(),
                )
            self.rows.append((len(self.rows) * EVERY, memory / 1e6, files, threads))

    def growth(self) -> dict[str, Any]:
        """Growth from the end of the warm-up to the end, by a straight line, with its 95 % interval.

        Raises:
            AssertionError: something grows: its interval lies above 0 and, for memory, above `MOST_GROWTH`.
        """
        table = np.array(self.rows[int(len(self.rows) * WARM_UP) :])
        found = {}
        for column, name in ((1, "memory_mb"), (2, "open_files"), (3, "threads")):
            line = linregress(table[:, 0], table[:, column])
            length = table[-1, 0] - table[0, 0]
            half = line.stderr * t.ppf(0.975, len(table) - 2) if np.ptp(table[:, column]) else 0.0
            low, middle, high = (length * slope for slope in (line.slope - half, line.slope, line.slope + half))
            allowed = MOST_GROWTH * table[:, column].mean() if name == "memory_mb" else 0.5
            assert low <= allowed, f"{name} grows by {middle:.2f} [{low:.2f}, {high:.2f}] in {length:.0f} s"
            found[name] = {"mean": table[:, column].mean(), "growth": [round(x, 3) for x in (low, middle, high)]}
        return found


@contextmanager
def watching(process: psutil.Process) -> Iterator[Watch]:
    watch = Watch(process)
    thread = threading.Thread(target=watch.measure, daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        watch.ended.set()
        thread.join()


def evaluation(folder: Path) -> dict[str, Any]:
    """Requests of an evaluation: an image and a question of random length each."""
    generator, rng = load_generator(str(write_llava(folder / "llava"))), random.Random(0)
    with watching(psutil.Process()) as watch:
        for _ in range(REQUESTS // BATCH):
            words = [" ".join(rng.choices(("red", "box", "left"), k=rng.randint(1, 12))) for _ in range(BATCH)]
            prompts = [generator.render(text, images=1) for text in words]
            images = [[image_of(rng.randint(0, 50))] for _ in words]
            assert len(generator.answer(prompts, images, max_new_tokens=4)) == BATCH
    return {"requests": REQUESTS, **watch.growth()}


def training(folder: Path) -> dict[str, Any]:
    """Steps of stage 2 on tiny conversations, with checkpoints."""
    (folder / "images").mkdir()
    rows = []
    for number in range(200):
        Image.new("RGB", (28, 28), (number, 255 - number, 50)).save(folder / "images" / f"{number}.png")
        turns = [{"from": "human", "value": "<image>\nred box"}, {"from": "gpt", "value": "left " * (1 + number % 7)}]
        rows.append({"id": str(number), "image": f"{number}.png", "conversations": turns})
    (folder / "rows.json").write_text(json.dumps(rows), encoding="utf-8")
    settings = {
        "config": REPOSITORY / "configuration/train/tinyworld/stage1.yaml",
        "method": "norm-gwc",
        "data_path": folder / "rows.json",
        "image_folder": folder / "images",
        "data_cache": folder / "cache",
        "output_dir": folder / "stage1",
        "vision_tower": REPOSITORY / "tinyworld/backbones/vision",
        "language_model": REPOSITORY / "tinyworld/backbones/language",
        "max_steps": STEPS,
        "global_batch_size": 4,
        "per_device_train_batch_size": 4,
        "save_steps": STEPS // 10,
    }
    words = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    with (folder / "output.txt").open("w") as output:
        process = psutil.Popen([sys.executable, "-m", "train.sft", *words], stdout=output, stderr=output)
        with watching(process) as watch:
            assert process.wait() == 0, (folder / "output.txt").read_text("utf-8")[-1000:]
    return {"steps": STEPS, **watch.growth()}


def demo(folder: Path) -> dict[str, Any]:
    """Questions to the demo, each with its own image, their answers streamed."""
    (model,) = load_models({"toy": str(write_llava(folder / "llava"))}, "cpu")
    with watching(psutil.Process()) as watch:
        for number in range(QUESTIONS):
            asked = ImageQuestion(str(number), lambda n=number: image_of(n % 50), "red box left")
            assert list(model.stream(asked, 8))[-1].ids
    return {"questions": QUESTIONS, **watch.growth()}


def cases(seed: int) -> Iterator[Case]:
    yield Case("evaluation", evaluation)
    yield Case("training", training)
    yield Case("demo", demo)


CAMPAIGN = Campaign("soak", cases)
