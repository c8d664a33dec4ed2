"""What the demo measures on an image: the attention at each word of an answer (paper Appendix G), and the norms of
visual and text tokens by layer (paper section 4), with the tools of `eval.diagnostics`.
"""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from eval.demo.models import Answer, DemoModel
from modeling_aligned_llava.diagnostics.hooks.loading import special_ids
from modeling_aligned_llava.diagnostics.images import ImageQuestion
from modeling_aligned_llava.diagnostics.measure.attention import AttentionReader
from modeling_aligned_llava.diagnostics.measure.layers import measuring
from modeling_aligned_llava.diagnostics.measure.profile import summarise
from modeling_aligned_llava.diagnostics.output.figures import draw_dynamics


SIDE = 640  # longest side of the images on the page, in pixels
DARKEST = 0.2  # brightness of cells without attention


@dataclass(frozen=True)
class ImageAttention:
    """Attention to the image.

    Attributes:
        share: the image's share of all attention.
        map: where it falls, [rows, columns], sums to 1; None if the visual tokens are not a single grid (tiles,
            resamplers).
    """

    share: float
    map: Tensor | None


@torch.inference_mode()
def word_attention(model: DemoModel, answer: Answer, first_token: int) -> ImageAttention:
    """Attention of the position that predicts token `first_token` of the answer, mean over heads and layers."""
    inputs = model.inputs(answer.asked)
    network = model.generator.model
    prefix = torch.tensor([answer.ids[:first_token]], dtype=torch.long, device=network.device)
    appended = {"input_ids": prefix, "attention_mask": torch.ones_like(prefix)}
    prompt = inputs["input_ids"].shape
    for name, values in inputs.items():
        if values.shape == prompt:  # one number per token; what is neither ids nor mask marks text with zeros
            inputs[name] = torch.cat([values, appended.get(name, torch.zeros_like(prefix))], 1)
    reader = AttentionReader(queries="last")
    with model.lock, reader.reading(network, model.parts, special_ids(model.generator.processor)):
        reader.begin(inputs)
        network(**inputs, use_cache=False)
    share = sum(numbers["mass"] for numbers in reader.numbers.values()) / len(reader.numbers)
    return ImageAttention(share, torch.stack(list(reader.maps.values())).mean(0) if reader.maps else None)


def preview(asked: ImageQuestion) -> Image.Image:
    """The image at its size on the page.

    Raises:
        UserError: it cannot be read.
    """
    image = asked.open()
    image.thumbnail((SIDE, SIDE))
    return image


def overlay(asked: ImageQuestion, attention: Tensor) -> Image.Image:
    """The image lit by its attention map [rows, columns]: the more attention a cell has, the brighter it is.

    The grid covers the whole image. If the image processor crops the edges, the map is off by as much.
    """
    image = preview(asked)
    image = image.resize([round(side * SIDE / max(image.size)) for side in image.size])
    light = DARKEST + (1 - DARKEST) * attention / attention.max()
    cells = Image.fromarray((light * 255).to(torch.uint8).numpy())
    cells = cells.resize(image.size, Image.Resampling.NEAREST)  # nothing finer was measured
    return Image.composite(image, Image.new("RGB", image.size), cells)


@torch.inference_mode()
def norms(model: DemoModel, asked: ImageQuestion) -> dict[str, Any]:
    """The profile of one image with its question, as `eval.diagnostics profile` writes it."""
    inputs = model.inputs(asked)
    network = model.generator.model
    with model.lock, measuring(network, model.parts, special_ids(model.generator.processor)) as measurement:
        network(**inputs, use_cache=False)
    return summarise(measurement, model.embedding, {"model": model.name}, [asked.id], [])


def norm_figure(profiles: dict[str, dict[str, Any]]) -> bytes:
    """Norms and cosines by layer as an SVG, one column per model."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "norms.svg"
        draw_dynamics(profiles, path)
        return path.read_bytes()
