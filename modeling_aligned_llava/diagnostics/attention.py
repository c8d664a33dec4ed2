"""`attention`: text-to-image attention as numbers (paper Appendix G), without storing whole attention matrices.

Eager attention modules always return their weights with their output, so a hook can read them without changing
anything: the logits are bit-equal to those of eager attention. The paper's "bottom of the image" becomes a share.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from modeling_aligned_llava.configuration_aligned_llava import AlignedLlavaConfig
from modeling_aligned_llava.diagnostics.instruments.decoder_states import watch_decoder_input
from modeling_aligned_llava.diagnostics.instruments.image_questions import Box, ImageQuestion, named_images
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load, tokenizer_of
from modeling_aligned_llava.diagnostics.instruments.svg import svg_file
from modeling_aligned_llava.diagnostics.instruments.tables import number, show_table
from modeling_aligned_llava.diagnostics.instruments.token_masks import Masks
from modeling_aligned_llava.diagnostics.instruments.token_statistics import mean_interval
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inspection.content_text import sinks, special_ids
from modeling_aligned_llava.inspection.forward_pass import hooked, in_rows
from modeling_aligned_llava.inspection.model_parts import FAMILIES, ModelParts, model_parts
from modeling_aligned_llava.loading.files import write_json


PATCHES = ("image_grid_thw", "image_grid_hws", "spatial_shapes")  # names for an image's patches [t,] rows, columns
ATTENTION_NUMBERS = (
    "mass",  # share of a text token's attention that falls on the image
    "mass_without_sinks",  # the same, without visual tokens that have massive activations
    "gain",  # attention per visual token, over attention per visible token: 1 is uniform
    "entropy",  # of the attention within the image, divided by that of uniform attention
    "bottom_third",  # share of the attention within the image that falls on its bottom third
    "centre",  # mean row of that attention, 0 top to 1 bottom
    "box",  # share within the box that the question is about, over the box's share of the area: 1 is uniform
)


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code, arguments.dtype)
    attended = attention(model, processor, named_images(arguments), arguments.connector)
    show_attention(arguments.model, attended, arguments.out and arguments.out / "attention.md")
    if arguments.out is not None:
        draw_maps(attended.pop("maps"), arguments.out / "attention.svg")
        write_json(arguments.out / "attention.json", attended)


@torch.inference_mode()
def attention(model: Any, processor: Any, sample: list[ImageQuestion], connector: str | None = None) -> dict[str, Any]:
    """`{"plain" | "shuffled": {layer: {number: {"mean", "ci95"}}}, "maps": {layer: [rows, columns]}, "images": n}`.

    `with_grid` is the number of images whose visual tokens have places in the image.
    """
    attended: dict[str, Any] = {"images": len(sample), "with_grid": 0}
    for kind in ("plain", "shuffled"):
        reader = AttentionReader(shuffle=kind == "shuffled")
        values: dict[int, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        maps: dict[int, list[Tensor]] = defaultdict(list)
        for _ in attention_by_image(model, processor, sample, reader, connector, f"attention, {kind}"):
            for layer, numbers in reader.numbers.items():
                for name, value in numbers.items():
                    values[layer][name].append(value)
            for layer, image_map in reader.maps.items():
                maps[layer].append(image_map)
            attended["with_grid"] += kind == "plain" and reader.grid is not None
        attended[kind] = {
            layer: {name: _mean(torch.tensor(column)) for name, column in columns.items()}
            for layer, columns in sorted(values.items())
        }
        if kind == "plain":
            attended["maps"] = {
                layer: torch.stack(layer_maps).mean(0).tolist()
                for layer, layer_maps in sorted(maps.items())
                if len({image_map.shape for image_map in layer_maps}) == 1
            }
    return attended


def _mean(values: Tensor) -> dict[str, Any]:
    return {"mean": values.mean().item(), "ci95": mean_interval(values), "images": len(values)}


class AttentionReader:
    """Reduces each layer's attention in a pass over one image (one row) to numbers and a map over the image.

    The queries are all text tokens after the image.

    After the pass, `numbers` has `ATTENTION_NUMBERS` by layer, `maps` the mean attention [rows, columns] within the
    image by layer (its sum is 1), and `covered` the share of each cell [rows, columns] that lies in the boxes. There
    are no maps, no `covered` and no numbers about places if the visual tokens are no `grid` of known sizes.

    Args:
        shuffle: permute the visual tokens at the decoder input. Rows and boxes then still refer to places in the
            *sequence*: a bias towards the bottom that remains is one of position, not of content.
    """

    def __init__(self, shuffle: bool = False):
        self.shuffle = shuffle
        self.generator = torch.Generator().manual_seed(0)

    @contextmanager
    def reading(self, model: Any, parts: ModelParts, special_ids: frozenset[int] = frozenset()) -> Iterator[None]:
        """Read every forward pass inside the `with` block; call `begin` before each."""
        self.config = model.config
        with (
            hooked([layer.register_forward_pre_hook(self._before_layer, with_kwargs=True) for layer in parts.layers]),
            watch_decoder_input(model, parts, self._at_decoder_input, special_ids),
            attention_weights(model, parts, self._on_weights),
        ):
            yield

    def begin(self, inputs: dict[str, Any], boxes: tuple[Box, ...] = (), seen: Box = (0, 0, 1, 1)) -> None:
        """Start a pass: its inputs, the boxes that the question is about, and the part of the image that is `seen`."""
        self.inputs, self.boxes, self.seen = inputs, boxes, seen
        self.numbers: dict[int, dict[str, float]] = {}
        self.maps: dict[int, Tensor] = {}
        self.covered: Tensor | None = None

    def _at_decoder_input(self, states: Tensor, masks: Masks) -> Tensor | None:
        if states.shape[0] != 1:
            raise ValueError("attention is read one image at a time")
        self.visual = masks["visual"][0].nonzero().flatten()
        self.grid = grid_of(len(self.visual), self.inputs, self.config)
        covered = box_shares(self.boxes, self.seen, self.grid) if self.grid and self.boxes else None
        self.covered = covered if covered is not None and covered.any() else None
        text = masks["text"][0].nonzero().flatten()
        self.query = text[text > self.visual[-1]]
        if not len(self.query):
            raise UserError("no text token follows the image, so nothing asks about it")
        if not self.shuffle:
            return None
        order = torch.randperm(len(self.visual), generator=self.generator).to(states.device)
        changed = states.clone()
        changed[0, self.visual] = states[0, self.visual[order]]
        return changed

    def _before_layer(self, _: Any, args: tuple, kwargs: dict[str, Any]) -> None:
        states = in_rows(args[0] if args else kwargs["hidden_states"]).detach()
        self.sinks = sinks(states.float())[0]

    def _on_weights(self, layer: int, weights: Tensor) -> None:
        """weights: [1, heads, tokens, tokens] of one layer."""
        rows = weights[0][:, self.query]  # (heads, queries, tokens)
        on_image, visible = rows[..., self.visual].double(), (rows > 0).sum(-1)  # none of what a window hides
        mass, count = on_image.sum(-1), len(self.visual)
        plain = ~self.sinks[self.visual]
        numbers = {
            "mass": mass.mean(),
            "mass_without_sinks": on_image[..., plain].sum(-1).mean(),
            "gain": (mass * visible / count).mean(),
        }
        within = on_image[mass > 0] / mass[mass > 0][:, None]  # (n, visual tokens)
        if len(within):
            entropy = -torch.xlogy(within, within).sum(-1) / torch.log(torch.tensor(float(max(2, count))))
            numbers["entropy"] = entropy.mean()
        if len(within) and self.grid is not None:
            image = within.mean(0).cpu().view(self.grid)
            by_row = image.sum(1)
            centres = (torch.arange(self.grid[0], dtype=torch.float64) + 0.5) / self.grid[0]
            third = _overlap(self.grid[0] * 2 / 3, float(self.grid[0]), self.grid[0])
            numbers |= {"bottom_third": (by_row * third).sum(), "centre": (by_row * centres).sum()}
            if self.covered is not None:
                numbers["box"] = (image * self.covered).sum() / self.covered.mean()
            self.maps[layer] = image
        self.numbers[layer] = {name: float(value) for name, value in numbers.items()}


def attention_by_image(
    model: Any,
    processor: Any,
    sample: list[ImageQuestion],
    reader: AttentionReader,
    connector: str | None = None,
    description: str = "attention",
) -> Iterator[tuple[ImageQuestion, AttentionReader]]:
    """Run one forward pass per image and yield the image with `reader`, which holds the pass's numbers and maps.

    Raises:
        UserError: an image cannot be read, or no text token follows it.
    """
    parts = model_parts(model, connector)
    with reader.reading(model, parts, special_ids(tokenizer_of(processor), model.config)):
        for image in track(sample, description=description):
            inputs = inputs_of(processor, image, model.device, model.dtype)
            if image.boxes:
                seen = seen_part(getattr(processor, "image_processor", None), image.open().size)
                reader.begin(inputs, image.boxes, seen)
            else:
                reader.begin(inputs)
            with errors_named(f"{model.config.name_or_path} fails on {image.id}"):
                model(**inputs, use_cache=False)
            yield image, reader


@contextmanager
def attention_weights(model: Any, parts: ModelParts, on_weights: Callable[[int, Tensor], None]) -> Iterator[None]:
    """Call `on_weights(layer, weights [rows, heads, tokens, tokens])` for every decoder layer with attention.

    The model runs with eager attention inside the `with` block. Layers without attention (convolutions) are skipped.
    """
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")

    def hook(layer: int, output: Any) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor) and output[1].dim() == 4:
            if output[1].shape[-1] == output[1].shape[-2]:
                on_weights(layer, output[1].detach())

    handles = [
        module.register_forward_hook(lambda _, args, output, number=number: hook(number, output))
        for number, layer in enumerate(parts.layers)
        for module in layer.modules()
        if module is not layer
    ]
    try:
        with hooked(handles):
            yield
    finally:
        model.set_attn_implementation(before)


def grid_of(count: int, inputs: dict[str, Any], config: Any) -> tuple[int, int] | None:
    """Rows and columns of one image's `count` visual tokens; None where they are not one grid of known sizes.

    Sizes are known where the processor gives the patches of the image, and from its pixels where a family that keeps
    the order of patches gets it in one piece. Tiles and resamplers have none.
    """
    sizes = next((inputs[name] for name in PATCHES if inputs.get(name) is not None), None)
    if sizes is not None:
        frames, high, wide = [1, *sizes[0].tolist()][-3:]
        pieces = len(sizes) * frames
    else:
        pixels, padding = inputs.get("pixel_values"), inputs.get("pixel_attention_mask")
        patch = getattr(getattr(config, "vision_config", None), "patch_size", None)
        known = config.model_type in (*FAMILIES, AlignedLlavaConfig.model_type)
        if not known or patch is None or pixels is None:
            return None
        patch = (patch, patch) if isinstance(patch, int) else tuple(patch)
        high, wide = (pixels.shape[i - 2] // patch[i] for i in (0, 1))
        pieces = pixels.shape[:-3].numel() if padding is None or padding.all() else 0
    merge = max(1, round((high * wide / count) ** 0.5))  # patches of a token, in each direction
    whole = high % merge == wide % merge == 0 and high * wide == count * merge**2
    return (high // merge, wide // merge) if pieces == 1 and whole else None


def seen_part(image_processor: Any, size: tuple[int, int]) -> Box:
    """The part of an image (width, height) that the model gets, in its pixels: cut out of it, or with margins."""
    (width, height), (seen_width, seen_height) = size, size
    resized: Any = getattr(image_processor, "size", None)
    if getattr(image_processor, "do_center_crop", False) and hasattr(resized, "get") and resized.get("shortest_edge"):
        scale, crop = min(size) / resized["shortest_edge"], image_processor.crop_size
        seen_width, seen_height = crop["width"] * scale, crop["height"] * scale
    elif type(image_processor).__name__.startswith("LlavaImageProcessor") and image_processor.do_pad:
        seen_width = seen_height = max(size)
    left, top = (width - seen_width) / 2, (height - seen_height) / 2
    return left, top, left + seen_width, top + seen_height


def box_shares(boxes: tuple[Box, ...], seen: Box, grid: tuple[int, int]) -> Tensor:
    """Share of each cell [rows, columns] of the grid over the part `seen` that the boxes cover.

    Boxes and `seen` are left, top, right, bottom in pixels.
    """
    rows, columns = grid
    across_cell, down_cell = (seen[2] - seen[0]) / columns, (seen[3] - seen[1]) / rows
    covered = torch.zeros(rows, columns, dtype=torch.float64)
    for left, top, right, bottom in boxes:
        across = _overlap((left - seen[0]) / across_cell, (right - seen[0]) / across_cell, columns)
        down = _overlap((top - seen[1]) / down_cell, (bottom - seen[1]) / down_cell, rows)
        covered += down[:, None] * across
    return covered.clamp_max(1)


def _overlap(start: float, end: float, cells: int) -> Tensor:
    edges = torch.arange(cells + 1, dtype=torch.float64)
    return (edges[1:].clamp_max(end) - edges[:-1].clamp_min(start)).clamp(0, 1)


def show_attention(model: str, attended: dict[str, Any], out: Path | None = None) -> None:
    """Appendix G by layer, and `bottom_third` again with the visual tokens shuffled."""
    rows = []
    for layer, numbers in attended["plain"].items():
        cells = [_cell(numbers.get(name)) for name in ATTENTION_NUMBERS]
        rows.append([str(layer), *cells, _cell(attended["shuffled"][layer].get("bottom_third"))])
    heads = ["layer", *(name.replace("_", " ") for name in ATTENTION_NUMBERS), "bottom third, tokens shuffled"]
    title = f"{model}: attention of text tokens to {attended['images']} images"
    show_table(title, heads, rows, out)
    placed, images = attended["with_grid"], attended["images"]
    if placed < images:
        print(  # noqa: T201
            f"bottom third, centre, box and map are of {placed} of {images} images: the visual tokens of the others "
            "are not one grid whose rows and columns are known (tiles, a resampler)"
        )
    elif not attended["maps"]:
        print("no maps: the images have grids of several sizes")  # noqa: T201


def _cell(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{number(value['mean'], 3)} [{value['ci95'][0]:.3f}, {value['ci95'][1]:.3f}]"


def draw_maps(maps: dict[int, list[list[float]]], path: Path) -> None:
    """The mean map of every layer over all images, each on its own scale."""
    if not maps:
        return
    with svg_file(path, 1, len(maps), (2.2 * len(maps), 2.6)) as axes:
        for axis, (layer, image) in zip(axes[0], maps.items(), strict=True):
            axis.pcolormesh(image, cmap="viridis", vmin=0)  # vector cells: the file stays text
            axis.set(title=f"layer {layer}", xticks=[], yticks=[], aspect="equal")
            axis.invert_yaxis()
