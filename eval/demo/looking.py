"""What a model does with the picture in front of it: where each word of its answer looks (paper Appendix G), and the
norms of its visual and text tokens by layer (paper section 4). The measuring is that of `eval.diagnostics`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from eval.data.image_sample import ImageQuestion
from eval.demo.arms import Answer, Arm
from eval.diagnostics.hooks.loading import special_ids
from eval.diagnostics.measure.attention import AttentionReader
from eval.diagnostics.measure.layers import measuring
from eval.diagnostics.measure.profile import summarise
from eval.diagnostics.output.figures import draw_dynamics


SIDE = 640  # longest side of the pictures on the page, in pixels
DARKEST = 0.2  # light that is left to the cells without attention


@dataclass(frozen=True)
class Look:
    """Attention on the picture: its share of all attention, and where it falls (rows, columns; sums to 1).

    There is no map where the visual tokens are no single grid (tiles, resamplers).
    """

    share: float
    map: Tensor | None


@torch.inference_mode()
def look(arm: Arm, answer: Answer, first_token: int) -> Look:
    """Where the model looks when it is about to say token `first_token`: mean over heads and layers."""
    inputs = arm.inputs(answer.picture)
    said = torch.tensor([answer.ids[:first_token]], dtype=torch.long, device=arm.generator.model.device)
    more = {"input_ids": said, "attention_mask": torch.ones_like(said)}
    prompt = inputs["input_ids"].shape
    for name, values in inputs.items():
        if values.shape == prompt:  # one number a token; what is neither id nor mask says that it is text
            inputs[name] = torch.cat([values, more.get(name, torch.zeros_like(said))], 1)
    reader = AttentionReader(queries="last")
    model = arm.generator.model
    with arm.lock, reader.reading(model, arm.parts, special_ids(arm.generator.processor)):
        reader.begin(inputs)
        model(**inputs, use_cache=False)
    share = sum(numbers["mass"] for numbers in reader.numbers.values()) / len(reader.numbers)
    return Look(share, torch.stack(list(reader.maps.values())).mean(0) if reader.maps else None)


def preview(picture: ImageQuestion) -> Image.Image:
    """The picture at the size it has on the page.

    Raises:
        UserError: it cannot be read.
    """
    image = picture.open()
    image.thumbnail((SIDE, SIDE))
    return image


def overlay(picture: ImageQuestion, attention: Tensor) -> Image.Image:
    """The picture lit by its attention map: the more attention a cell has, the brighter it is.

    The grid is laid over the whole picture; of one whose edges the image processor cuts off it is shifted by as much.
    """
    image = preview(picture)
    image = image.resize([round(side * SIDE / max(image.size)) for side in image.size])
    light = DARKEST + (1 - DARKEST) * attention / attention.max()  # (rows, columns)
    cells = Image.fromarray((light * 255).to(torch.uint8).numpy())
    cells = cells.resize(image.size, Image.Resampling.NEAREST)  # as they are: nothing finer was measured
    return Image.composite(image, Image.new("RGB", image.size), cells)


@torch.inference_mode()
def norms(arm: Arm, picture: ImageQuestion) -> dict[str, Any]:
    """The profile of one picture with its question, as `eval.diagnostics profile` writes it."""
    inputs = arm.inputs(picture)
    model = arm.generator.model
    with arm.lock, measuring(model, arm.parts, special_ids(arm.generator.processor)) as measurement:
        model(**inputs, use_cache=False)
    return summarise(measurement, arm.embedding, {"model": arm.name}, [picture.id], [])


def norm_figure(profiles: dict[str, dict[str, Any]]) -> bytes:
    """Norms and cosines by layer as an SVG, one column an arm."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "norms.svg"
        draw_dynamics(profiles, path)
        return path.read_bytes()
