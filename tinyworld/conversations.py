"""Training data in LLaVA's JSON format: captions (stage 1), conversations about images or facts (stage 2)."""

import json
import random
from pathlib import Path
from typing import Any

from rich.progress import track

from tinyworld.language import DESCRIBE
from tinyworld.world import World


TURNS = 3
EASY_TURNS = 6
IMAGE_FOLDER = "images"


def _conversation(turns: list[tuple[str, str]], with_image: bool) -> list[dict[str, str]]:
    messages = []
    for index, (question, answer) in enumerate(turns):
        prefix = "<image>\n" if with_image and index == 0 else ""
        messages += [{"from": "human", "value": prefix + question}, {"from": "gpt", "value": answer}]
    return messages


def write_conversations(out: Path, world: World, images: int, seed: int = 0) -> None:
    """Write OUT/images/*.jpg, OUT/stage1.json and OUT/stage2.json.

    Stage 1 has captions of all images, of easy ones first; stage 2 has conversations about the others, after easy ones
    without an image.
    """
    (out / IMAGE_FOLDER).mkdir(parents=True)
    stage1: list[dict[str, Any]] = []
    stage2: list[dict[str, Any]] = []
    for index in range(round(world.easy_text_share * images)):
        rng = random.Random(f"{world.name} easy {seed} {index}")
        easy_talk = _conversation(world.easy_turns(rng, EASY_TURNS), with_image=False)
        stage2.append({"id": f"easy-{index}", "conversations": easy_talk})
    for index in track(range(images), description="training images and conversations"):
        rng = random.Random(f"{world.name} train {seed} {index}")
        easy = index < world.easy_share * images
        items = world.draw_easy(rng) if easy else world.draw(rng)
        name = f"{index:06d}.jpg"
        world.render(items, rng, "train").image.save(out / IMAGE_FOLDER / name, quality=90)
        described = _conversation([(DESCRIBE, world.caption(items))], with_image=True)
        stage1.append({"id": f"caption-{index}", "image": name, "conversations": described})
        if easy:
            continue
        turns = world.scene_turns(items, rng, TURNS)
        if turns:  # none, if everything in the scene is held out of training
            scene = _conversation(turns, with_image=True)
            stage2.append({"id": f"scene-{index}", "image": name, "conversations": scene})
        if rng.random() < world.text_share:
            facts = _conversation(world.text_turns(rng, TURNS), with_image=False)
            stage2.append({"id": f"facts-{index}", "conversations": facts})
    for name, rows in (("stage1.json", stage1), ("stage2.json", stage2)):
        (out / name).write_text(json.dumps(rows, indent=1), encoding="utf-8")
