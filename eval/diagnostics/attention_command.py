"""`attention MODEL --images DIR | --data ROOT`: where text looks in the image (App. G), as numbers and maps."""

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from eval.diagnostics.attention import NUMBERS, AttentionReader
from eval.diagnostics.bootstrap import mean_interval
from eval.diagnostics.figures import svg
from eval.diagnostics.loading import inputs_of, load, special_ids
from eval.diagnostics.pictures import Picture
from eval.diagnostics.profile_command import add_model, add_pictures, readable_pictures
from eval.diagnostics.tables import number, show
from eval.suite.files import write_json
from modeling_aligned_llava.anatomy import anatomy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--queries", choices=("text", "last"), default="text", help="tokens that look (default text)")
    parser.add_argument("--out", type=Path, help="folder for attention.json, a table and the maps")


def run(arguments: argparse.Namespace) -> None:
    model, processor = load(arguments.model, arguments.trust_remote_code)
    with readable_pictures(arguments) as sample:
        found = attention(model, processor, sample, arguments.queries, arguments.connector)
        show_attention(arguments.model, found, arguments.out and arguments.out / "attention.md")
        if arguments.out is not None:
            draw_maps(found.pop("maps"), arguments.out / "attention.svg")
            write_json(arguments.out / "attention.json", found)


@torch.inference_mode()
def attention(
    model: Any, processor: Any, sample: list[Picture], queries: str = "text", connector: str | None = None
) -> dict[str, Any]:
    """`{"plain" | "shuffled": {layer: {number: {"mean", "ci95"}}}, "maps": {layer: [rows, columns]}, "images": n}`."""
    parts = anatomy(model, connector)
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


def show_attention(model: str, found: dict[str, Any], out: Path | None = None) -> None:
    rows = []
    for layer, columns in found["plain"].items():
        cells = [_cell(columns.get(name)) for name in NUMBERS]
        shuffled = found["shuffled"][layer].get("bottom_third")
        rows.append([str(layer), *cells, _cell(shuffled)])
    heads = ["layer", *(name.replace("_", " ") for name in NUMBERS), "bottom third, tokens shuffled"]
    show(f"{model}: attention of {found['queries']} tokens to {found['images']} images", heads, rows, out)


def _cell(value: dict[str, Any] | None) -> str:
    return "-" if value is None else f"{number(value['mean'], 3)} [{value['ci95'][0]:.3f}, {value['ci95'][1]:.3f}]"


def draw_maps(maps: dict[int, list[list[float]]], path: Path) -> None:
    """The mean map of every layer over all images, each on its own scale."""
    if not maps:
        return
    with svg(path, 1, len(maps), (2.2 * len(maps), 2.6)) as axes:
        for axis, (layer, image) in zip(axes[0], maps.items(), strict=True):
            axis.pcolormesh(image, cmap="viridis", vmin=0)  # vector cells: the file stays text
            axis.set(title=f"layer {layer}", xticks=[], yticks=[], aspect="equal")
            axis.invert_yaxis()
