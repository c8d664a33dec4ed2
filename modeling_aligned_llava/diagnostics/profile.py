"""`profile`: the norm profile of a model (paper Tables 1-2, Figs. 2-4): measured on images, shown, written as JSON."""

import argparse
import json
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.progress import track

from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion, named_images
from modeling_aligned_llava.diagnostics.instruments.models import inputs_of, load, tokenizer_of
from modeling_aligned_llava.diagnostics.instruments.tables import number, paper_row, show_table, spread
from modeling_aligned_llava.diagnostics.norm_profile.connector_norm import connector_norm
from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import measuring
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import summarise
from modeling_aligned_llava.diagnostics.norm_profile.verdict import show_verdict
from modeling_aligned_llava.errors import UserError, errors_named
from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.forward_pass import check_finite
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import embedding_norms


class InertTokens(UserError):
    """More layers are inert than `--fail-if-inert` allows."""

    status = 3


def run(arguments: argparse.Namespace) -> None:
    images, piped, limit = named_images(arguments), str(arguments.json) == "-", arguments.fail_if_inert
    if limit is not None and not 0 <= limit < 1:
        raise UserError(f"--fail-if-inert {limit:g}: a share of the layers, from 0 to below 1, is needed")
    out = None if piped else arguments.json
    with redirect_stdout(sys.stderr) if piped else nullcontext():
        result = profile(
            arguments.model, images, out, arguments.connector, arguments.trust_remote_code, arguments.dtype
        )
        show_verdict(result)
        if not (arguments.images or arguments.data):
            print("  Measured on drawn images: norms may differ on yours (--images DIR).")  # noqa: T201
        show_norms(result)
        show_information(result)
    if piped:
        print(json.dumps(result))  # noqa: T201
    if result["unreadable"]:
        first, kept = result["unreadable"][0]["reason"], f"; the rest is in {out}" if out else ""
        raise UserError(f"{len(result['unreadable'])} images could not be read, such as: {first}{kept}")
    if limit is not None:
        _fail_if_inert(result, limit)


def _fail_if_inert(result: dict[str, Any], limit: float) -> None:
    if result["verdict"] is None:
        raise UserError(f"--fail-if-inert: {result['model']} had no image with both visual tokens and text")
    share = len(result["verdict"]["inert_layers"]) / len(result["stream"]["ratio"])
    if share > limit:
        raise InertTokens(f"visual tokens are inert in {share:.0%} of layers, more than {limit:.0%} (--fail-if-inert)")


def profile(
    path: str,
    images: list[ImageQuestion],
    out: Path | None = None,
    connector: str | None = None,
    trust_remote_code: bool = False,
    dtype: str = "auto",
) -> dict[str, Any]:
    """Measure the model at `path` on `images`; `out` is the file that is written.

    An image that cannot be read is left out and listed under `unreadable`.

    Raises:
        UserError: the model cannot be loaded or measured, or no image can be read.
    """
    return profile_loaded(path, *load(path, trust_remote_code, dtype), images, out, connector)


def profile_loaded(
    name: str,
    model: Any,
    processor: Any,
    images: list[ImageQuestion],
    out: Path | None = None,
    connector: str | None = None,
) -> dict[str, Any]:
    """`profile` of a model that is already loaded, under the given name.

    Raises:
        UserError: the model cannot be measured, or no image can be read.
    """
    parts = model_parts(model, connector)
    embedding = {
        "text embeddings": embedding_norms(parts.embedding),
        "text embeddings, stored rows": embedding_norms(parts.embedding, stored=True),
    }
    check_finite(embedding["text embeddings"], model, "the norms of text embeddings")
    header: dict[str, Any] = {
        "model": name,
        "model_type": model.config.model_type,
        "modules": parts.names,
        "dtype": str(model.dtype).removeprefix("torch."),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    special = special_ids(tokenizer_of(processor), model.config)
    first: dict[str, Any] = {}  # the inputs of the first image
    measured: list[str] = []
    unreadable: list[dict[str, str]] = []
    with torch.inference_mode(), measuring(model, parts, special, len(images)) as measurement:
        for image in track(images, description="images"):
            try:
                inputs = inputs_of(processor, image, model.device, model.dtype)
            except UserError as error:
                unreadable.append({"id": image.id, "reason": str(error)})
                continue
            with errors_named(f"{name} fails on {image.id}"):
                model(**inputs, use_cache=False)
            first = first or inputs
            measured.append(image.id)
    if not measured:
        raise UserError(unreadable[0]["reason"])
    header["connector_norm"] = connector_norm(model, parts, first)
    result = summarise(measurement, embedding, header, measured, unreadable)
    if out is not None:
        write_json(out, result)
    return result


def show_norms(profile: dict[str, Any], out: Path | None = None) -> None:
    """Table 2: the norms at every stage."""
    paper = paper_row("projectors", profile["model"])
    beside = {
        "connector input": paper.get("before"),
        "visual tokens at layer 0": paper.get("after"),
        "text embeddings": {"mean": paper["text"], "std": None} if paper else None,
    }
    rows = []
    for where, norms in profile["norms"].items():
        low, high = norms.get("mean_ci95", (None, None))
        theirs = beside.get(where)
        rows.append(
            [
                where,
                spread(norms["mean"], norms["std"]),
                "-" if low is None else f"[{low:.4f}, {high:.4f}]",
                number(norms["median"]),
                f"{100 * norms['outlier_share']:.1f} %",
                str(norms["count"]),
                spread(theirs["mean"], theirs["std"], 2) if theirs else "-",
            ]
        )
    heads = ["where", "mean ± std over tokens", "95 % over images", "median", "> 5 x median", "tokens", "paper"]
    show_table(f"{profile['model']}: L2 norms", heads, rows, out)


def show_information(profile: dict[str, Any]) -> None:
    """What visual tokens hold of the image, by layer; a line if it could not be measured."""
    measured = profile["visual_information"]
    if measured["mean"] is None:
        reason = "at least 100 visual tokens that differ are needed"
        print(f"Visual information by layer: - ({measured['tokens']} visual tokens; {reason})")  # noqa: T201
        return
    intervals = measured["ci95"] or [None] * len(measured["mean"])
    shuffled = measured["shuffled"] or [None] * len(measured["mean"])
    rows = [
        [str(layer), number(mean, 3), "-" if ends is None else f"[{ends[0]:.3f}, {ends[1]:.3f}]", number(null, 3)]
        for layer, (mean, ends, null) in enumerate(zip(measured["mean"], intervals, shuffled, strict=True))
    ]
    heads = ["entering layer", "visual information", "95 % over images", "shuffled images"]
    show_table(f"Neighbours shared with the {measured['reference']}", heads, rows)
