"""`profile`: the norm profile of a model (paper Tables 1-2, Figs. 2-4): measured on images, shown, written as JSON."""

import argparse
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.progress import track

from modeling_aligned_llava.diagnostics.instruments.image_questions import ImageQuestion, named_images
from modeling_aligned_llava.diagnostics.instruments.models import errors_named, inputs_of, load, tokenizer_of
from modeling_aligned_llava.diagnostics.instruments.tables import number, paper_row, show_table, spread
from modeling_aligned_llava.diagnostics.norm_profile.layer_measurement import measuring
from modeling_aligned_llava.diagnostics.norm_profile.profile_file import summarise
from modeling_aligned_llava.diagnostics.norm_profile.verdict import show_verdict
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.inspection.content_text import special_ids
from modeling_aligned_llava.inspection.forward_pass import check_finite
from modeling_aligned_llava.inspection.model_parts import model_parts
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import embedding_norms


def run(arguments: argparse.Namespace) -> None:
    images, out = named_images(arguments), arguments.json
    result = profile(arguments.model, images, out, arguments.connector, arguments.trust_remote_code, arguments.dtype)
    show_norms(result)
    show_verdict(result)
    if result["unreadable"]:
        first, kept = result["unreadable"][0]["reason"], f"; the rest is in {out}" if out else ""
        raise UserError(f"{len(result['unreadable'])} images could not be read, such as: {first}{kept}")


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
    header = {
        "model": name,
        "model_type": model.config.model_type,
        "modules": parts.names,
        "dtype": str(model.dtype).removeprefix("torch."),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    special = special_ids(tokenizer_of(processor), model.config)
    measured: list[str] = []
    unreadable: list[dict[str, str]] = []
    with torch.inference_mode(), measuring(model, parts, special) as measurement:
        for image in track(images, description="images"):
            try:
                inputs = inputs_of(processor, image, model.device, model.dtype)
            except UserError as error:
                unreadable.append({"id": image.id, "reason": str(error)})
                continue
            with errors_named(f"{name} fails on {image.id}"):
                model(**inputs, use_cache=False)
            measured.append(image.id)
    if not measured:
        raise UserError(unreadable[0]["reason"])
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
