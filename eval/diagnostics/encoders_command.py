"""`encoders MODEL ... --images DIR | --data ROOT`: norms of what vision encoders put out (Table 1).

Which output decides the number: SigLIP's last hidden state has gone through its final norm, CLIP's has not; LLaVA
reads the layer before the last and drops the class token. All are printed; the paper does not say which is its.
"""

import argparse
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

from eval.diagnostics.loading import load_encoder
from eval.diagnostics.pictures import Picture
from eval.diagnostics.profile_command import add_pictures, paper_row, readable_pictures
from eval.diagnostics.tables import number, show, spread
from eval.suite.files import write_json
from modeling_aligned_llava.moments import Moments


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="vision encoders, CLIP-like or vision-language models"
    )
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")
    add_pictures(parser)
    parser.add_argument("--out", type=Path, help="folder for encoders.json and the table")


def run(arguments: argparse.Namespace) -> None:
    with readable_pictures(arguments) as sample:
        found = {
            path: encoder_norms(*load_encoder(path, arguments.trust_remote_code), sample) for path in arguments.models
        }
        show_encoders(found, arguments.out and arguments.out / "encoders.md")
        if arguments.out is not None:
            write_json(arguments.out / "encoders.json", found)


@torch.inference_mode()
def encoder_norms(encoder: Any, processor: Any, sample: list[Picture]) -> dict[str, Any]:
    """`{"dim", "last hidden state" | ...: statistics}`; a class token, if any, is left out of "patches"."""
    moments = {name: Moments() for name in ("last hidden state", "last, patches", "layer -2, patches")}
    dim = 0
    for picture in track(sample, description="pictures"):
        pixels = processor(images=[picture.open()], return_tensors="pt")["pixel_values"].to(encoder.device)
        output = encoder(pixels, output_hidden_states=True)
        last, before = output.last_hidden_state, output.hidden_states[-2]
        tokens, dim = last.shape[-2:]
        skip = int(round(tokens**0.5) ** 2 != tokens and round((tokens - 1) ** 0.5) ** 2 == tokens - 1)
        for name, states in zip(moments, (last, last[..., skip:, :], before[..., skip:, :]), strict=True):
            moments[name].add(states.float().norm(dim=-1).flatten())
    return {"dim": dim, **{name: each.summary() for name, each in moments.items()}}


def show_encoders(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    rows = []
    for model, columns in found.items():
        paper = paper_row("encoders", model)
        for name, norms in columns.items():
            if name != "dim":
                cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), str(norms["count"])]
                theirs = spread(paper.get("mean"), paper.get("std"), 2)
                rows.append([f"{model}: {name}", str(columns["dim"]), *cells, theirs])
    heads = ["encoder", "dimension", "mean ± std over tokens", "median", "tokens", "paper"]
    show("Norms of vision encoder outputs (Table 1)", heads, rows, out)
