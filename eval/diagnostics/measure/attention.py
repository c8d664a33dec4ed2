"""Text-to-image attention as numbers (paper Appendix G), for any model and without keeping maps of whole sequences.

Eager attention modules return their weights beside their output whether or not anyone asks, so a hook reads them and
changes nothing: logits are those of eager attention to the bit. The paper's "bottom of the image" becomes a share.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from eval.data.image_sample import Box, Picture
from eval.diagnostics.hooks.decoder_input import at_entry, in_rows
from eval.diagnostics.hooks.loading import inputs_of, special_ids
from eval.diagnostics.hooks.token_masks import Masks
from eval.diagnostics.measure.rotation import sinks
from eval.diagnostics.statistics.bootstrap import mean_interval
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.model_parts import ModelParts, model_parts


NUMBERS = (
    "mass",  # share of a text token's attention that falls on the image
    "mass_without_sinks",  # the same without visual tokens of massive activation
    "gain",  # attention per visual token over attention per visible token: 1 is uniform
    "entropy",  # of the attention within the image, over that of uniform attention
    "bottom_third",  # share of the attention within the image that falls on its bottom third
    "centre",  # mean row of that attention, 0 top to 1 bottom
    "box",  # share within the box that is asked about, over the box's share of the area: 1 is uniform
)


@contextmanager
def attention_weights(model: Any, parts: ModelParts, look: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call `look(layer, weights [rows, heads, tokens, tokens])` for every decoder layer with attention.

    The model runs in eager attention inside the `with` block. Layers without attention (convolutions) are not called.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")

    def hook(index: int, output: Any) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor) and output[1].dim() == 4:
            if output[1].shape[-1] == output[1].shape[-2]:
                look(index, output[1].detach())

    handles = [
        module.register_forward_hook(lambda _, args, output, index=index: hook(index, output))
        for index, layer in enumerate(parts.layers)
        for module in layer.modules()
        if module is not layer
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        model.set_attn_implementation(before)


def grid_of(count: int, inputs: dict[str, Any]) -> tuple[int, int] | None:
    """Rows and columns of the visual tokens of one image; None where they are no single grid (tiles, resamplers)."""
    thw = inputs.get("image_grid_thw")
    if thw is not None and len(thw) == 1:
        frames, high, wide = thw[0].tolist()
        merge = round((frames * high * wide / count) ** 0.5)
        return (high // merge, wide // merge) if (high // merge) * (wide // merge) == count else None
    side = round(count**0.5)
    return (side, side) if side * side == count else None


def box_shares(boxes: tuple[Box, ...], size: tuple[int, int], grid: tuple[int, int]) -> Tensor:
    """Share of each grid cell [rows, columns] that boxes (left, top, right, bottom in pixels) cover."""
    (width, height), (rows, columns) = size, grid
    covered = torch.zeros(rows, columns, dtype=torch.float64)
    for left, top, right, bottom in boxes:
        across = _overlap(left / width * columns, right / width * columns, columns)
        down = _overlap(top / height * rows, bottom / height * rows, rows)
        covered += down[:, None] * across
    return covered.clamp_max(1)


def _overlap(start: float, end: float, cells: int) -> Tensor:
    edges = torch.arange(cells + 1, dtype=torch.float64)
    return (edges[1:].clamp_max(end) - edges[:-1].clamp_min(start)).clamp(0, 1)


class AttentionReader:
    """Reduces each layer's attention of one image (one row) to `NUMBERS` and to its map over the image.

    Args:
        queries: "text": all text tokens behind the image; "last": the last token of the prompt.
        shuffle: permute the visual tokens at the decoder's door. Rows and boxes then still mean places in the
            *sequence*: a bias towards the bottom that stays is one of position, not of content.
    """

    def __init__(self, queries: str = "text", shuffle: bool = False, seed: int = 0):
        self.queries, self.shuffle = queries, shuffle
        self.generator = torch.Generator().manual_seed(seed)

    @contextmanager
    def reading(self, model: Any, parts: ModelParts, special_ids: frozenset[int] = frozenset()) -> Iterator[None]:
        handles = [
            layer.register_forward_pre_hook(lambda _, args, kwargs: self._before_layer(args, kwargs), with_kwargs=True)
            for layer in parts.layers
        ]
        try:
            with at_entry(model, parts, self._entry, special_ids), attention_weights(model, parts, self._layer):
                yield
        finally:
            for handle in handles:
                handle.remove()

    def begin(self, inputs: dict[str, Any], boxes: tuple[Box, ...] = (), size: tuple[int, int] = (1, 1)) -> None:
        """Before each pass: its inputs, and the boxes that are asked about in an image of `size` (width, height)."""
        self.inputs, self.boxes, self.size = inputs, boxes, size
        self.numbers: dict[int, dict[str, float]] = {}
        self.maps: dict[int, Tensor] = {}

    def _entry(self, states: Tensor, masks: Masks) -> Tensor | None:
        if states.shape[0] != 1:
            raise ValueError("attention is read one image at a time")
        self.visual = masks["visual"][0].nonzero().flatten()
        self.grid = grid_of(len(self.visual), self.inputs)
        self.inside = box_shares(self.boxes, self.size, self.grid) if self.grid and self.boxes else None
        behind = masks["text"][0].nonzero().flatten()
        behind = behind[behind > self.visual[-1]]
        if not len(behind):
            raise UserError("no text token stands behind the image: nothing asks about it")
        self.query = behind if self.queries == "text" else behind.new_tensor([states.shape[1] - 1])
        if not self.shuffle:
            return None
        order = torch.randperm(len(self.visual), generator=self.generator).to(states.device)
        changed = states.clone()
        changed[0, self.visual] = states[0, self.visual[order]]
        return changed

    def _before_layer(self, args: tuple, kwargs: dict[str, Any]) -> None:
        states = in_rows(args[0] if args else kwargs["hidden_states"]).detach()
        self.sinks = sinks(states.float())[0]

    def _layer(self, index: int, weights: Tensor) -> None:
        on_image = weights[0][:, self.query][:, :, self.visual].double()  # (heads, queries, visual tokens)
        mass = on_image.sum(-1)
        visible = (self.query + 1).to(mass.device)
        within = on_image / mass[..., None].clamp_min(1e-300)
        count = len(self.visual)
        entropy = -torch.xlogy(within, within).sum(-1) / torch.log(torch.tensor(float(max(2, count))))
        plain = ~self.sinks[self.visual]
        found = {
            "mass": mass.mean(),
            "mass_without_sinks": on_image[..., plain].sum(-1).mean(),
            "gain": (mass * visible / count).mean(),
            "entropy": entropy.mean(),
        }
        share = within.mean((0, 1)).cpu()
        if self.grid is not None:
            image = share.view(self.grid)
            by_row = image.sum(1)
            places = (torch.arange(self.grid[0], dtype=torch.float64) + 0.5) / self.grid[0]
            third = _overlap(self.grid[0] * 2 / 3, float(self.grid[0]), self.grid[0])
            found |= {"bottom_third": (by_row * third).sum(), "centre": (by_row * places).sum()}
            if self.inside is not None:
                found["box"] = (image * self.inside).sum() / self.inside.mean()
            self.maps[index] = image
        self.numbers[index] = {name: float(value) for name, value in found.items()}


@torch.inference_mode()
def attention(
    model: Any, processor: Any, sample: list[Picture], queries: str = "text", connector: str | None = None
) -> dict[str, Any]:
    """`{"plain" | "shuffled": {layer: {number: {"mean", "ci95"}}}, "maps": {layer: [rows, columns]}, "images": n}`."""
    parts = model_parts(model, connector)
    found: dict[str, Any] = {"queries": queries, "images": len(sample)}
    for kind in ("plain", "shuffled"):
        reader = AttentionReader(queries, shuffle=kind == "shuffled")
        values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        maps: dict[int, list[Tensor]] = defaultdict(list)
        with reader.reading(model, parts, special_ids(processor)):
            for picture in track(sample, description=f"attention, {kind}"):
                inputs = inputs_of(processor, picture, model.device)
                reader.begin(inputs, picture.boxes, picture.open().size if picture.boxes else (1, 1))
                model(**inputs, use_cache=False)
                for layer, numbers in reader.numbers.items():
                    for name, value in numbers.items():
                        values[layer][name].append(value)
                for layer, image in reader.maps.items():
                    maps[layer].append(image)
        found[kind] = {
            layer: {name: _mean(torch.tensor(column)) for name, column in columns.items()}
            for layer, columns in sorted(values.items())
        }
        if kind == "plain":
            found["maps"] = {
                layer: torch.stack(images).mean(0).tolist()
                for layer, images in sorted(maps.items())
                if len({image.shape for image in images}) == 1
            }
    return found


def _mean(values: Tensor) -> dict[str, Any]:
    return {"mean": values.mean().item(), "ci95": mean_interval(values), "images": len(values)}
