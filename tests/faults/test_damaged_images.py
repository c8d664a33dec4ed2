"""Damaged and unusual images: training, evaluation and diagnostics see the same pixels, or name the image.

`tests/modeling_aligned_llava/loading/test_images.py` has the details.
"""

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest
from PIL import Image

from modeling_aligned_llava.diagnostics.instruments.image_questions import in_folder
from modeling_aligned_llava.diagnostics.instruments.models import load
from modeling_aligned_llava.diagnostics.profile import profile_loaded
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.documents import Documents
from tests.faults.damaged_images import damaged_images, encoded, png
from tests.faults.harness import bounded_memory, in_campaign
from train.data.images import RowImages, open_row
from train.data.llava_tokens import ImageTextCollator, LlavaTokens
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine, read_entries
from train.data.sources import read_sources


PEAK_MIB = 2000  # the largest image allowed has 300 MB as RGB, and processors make copies
SIDE = 9_990  # of an image just within the limits
# Of these, our own opening refuses or reads more than `datasets` does.
OTHERWISE_IN_DATASETS = ("flipped bytes", "broken EXIF")
TURNS = [{"from": "human", "value": "<image>\nA?"}, {"from": "gpt", "value": "one"}]

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Pillow warns of bombs and of EXIF
    pytest.mark.timeout(300),  # else an image may take half an hour
]


@pytest.mark.parametrize(("seed", "count"), [(0, 48), *in_campaign((seed, 250) for seed in range(1, 21))])
def test_all_paths_agree(seed, count, checkpoint, how, processor, tmp_path):
    check(damaged_images(random.Random(seed), count), checkpoint, how, processor, tmp_path)


@pytest.mark.slow
@pytest.mark.campaign
def test_the_largest_image_allowed(checkpoint, how, processor, tmp_path):
    row = bytes(1 + -(-SIDE // 8))
    check([("large", png(SIDE, SIDE, 1, 0, row * SIDE))], checkpoint, how, processor, tmp_path)


def check(images: list[tuple[str, bytes]], checkpoint: Path, how: LlavaTokens, processor: Any, folder: Path) -> None:
    """Show the images, each of a kind, to every path."""
    files = folder / "files"
    files.mkdir()
    for number, (_, content) in enumerate(images):
        (files / f"{number:04}.png").write_bytes(content)
    questions = in_folder(files, len(images))
    with bounded_memory(PEAK_MIB):
        trained = training(files, len(images), how, processor, folder)
        evaluated = evaluation([content for _, content in images])
        diagnosed = [opened(question.open, f"{number:04}.png") for number, question in enumerate(questions)]
        profile = profile_loaded("tiny", *load(str(checkpoint)), questions)
    for number, (kind, _) in enumerate(images):
        assert diagnosed[number] == trained[number], f"image {number} ({kind}): other pixels in diagnostics"
        if evaluated[number] is not None and trained[number] is not None:
            assert evaluated[number] == trained[number], f"image {number} ({kind}): other pixels in evaluation"
        elif kind not in OTHERWISE_IN_DATASETS:
            assert evaluated[number] is trained[number] is None, f"image {number} ({kind}): used by one only"
    used = len(images) - trained.count(None)
    assert profile["images"] == used and len(profile["unreadable"]) == len(images) - used


def training(files: Path, count: int, how: LlavaTokens, processor: Any, folder: Path) -> list[str | None]:
    """Digests of what is trained on; the other images are quarantined by name, and replaced by good ones."""
    (folder / "good.png").write_bytes(encoded(random.Random(0), "PNG"))
    names = [f"files/{number:04}.png" for number in range(count)] + ["good.png"] * count
    rows = [json.dumps({"image": name, "conversations": TURNS}) for name in names]
    (folder / "data.jsonl").write_text("\n".join(rows))
    data = open_training_data(read_sources(str(folder / "data.jsonl"), str(folder)), how, folder / "cache")
    quarantine = Quarantine(folder / "quarantine.jsonl", data.opened, 1.0)
    quarantine.begin(data.bad_rows)
    row_images = RowImages(data, quarantine, seed=0)
    collate = ImageTextCollator(processor.image_processor, processor.tokenizer.pad_token_id, row_images)
    digests = []
    for number in range(count):
        row = data.dataset[number]
        batch = collate([row])
        assert batch["pixel_values"].shape == (1, 3, 28, 28) and batch["pixel_values"].isfinite().all()
        digests.append(opened(lambda row=row: open_row(data, row)[0], f"{number:04}.png"))
    entries = read_entries(quarantine.path)
    assert {entry.row for entry in entries} >= {number for number, digest in enumerate(digests) if digest is None}
    assert all(f"{entry.row:04}.png" in entry.detail for entry in entries), entries
    return digests


def evaluation(contents: list[bytes]) -> list[str | None]:
    def visual(document: dict[str, Any]) -> list[Image.Image]:
        return [document["image"].convert("RGB")]

    def shown(number: int) -> Image.Image:
        _, sizes = documents.look(visual, number)
        (image,) = documents.open(visual, number)
        assert sizes == [image.size], f"announced as {sizes}, decoded to {image.size}"
        return image

    rows = {"image": [{"bytes": content, "path": None} for content in contents]}
    features = datasets.Features({"image": datasets.Image()})
    documents = Documents(datasets.Dataset.from_dict(rows, features=features), "task")
    return [opened(lambda n=number: shown(n), f"task document {number}") for number in range(len(contents))]


def opened(open_image: Callable[[], Image.Image], name: str) -> str | None:
    """A digest of the pixels; None for an image that is refused by name."""
    try:
        image = open_image()
    except UserError as error:
        assert name in str(error) and "\n" not in str(error), error
        return None
    assert image.mode == "RGB"
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()
