"""`encoders MODEL ... --images DIR | --data ROOT`: norms of what vision encoders put out (Table 1).

Which output decides the number: SigLIP's last hidden state has gone through its final norm, CLIP's has not; LLaVA
reads the layer before the last and drops the class token. All are printed; the paper does not say which is its.
"""

import argparse
from pathlib import Path
from typing import Any

from eval.diagnostics.command_line import add_pictures, readable_pictures
from eval.diagnostics.hooks.loading import load_encoder
from eval.diagnostics.measure.encoders import encoder_norms
from eval.diagnostics.output.tables import number, paper_row, show, spread
from eval.run.files import write_json


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
