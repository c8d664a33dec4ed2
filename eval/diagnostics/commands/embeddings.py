"""`embeddings MODEL ... [--base MODEL]`: norms of text embeddings, largest rows, base against VL (Tables 1, 6-8)."""

import argparse
from pathlib import Path
from typing import Any

from eval.diagnostics.hooks.loading import load_language
from eval.diagnostics.measure.embeddings import base_against_vl, embedding_norms, embedding_statistics, largest_rows
from eval.diagnostics.output.tables import number, paper_row, show, spread
from eval.run.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="language or vision-language models")
    parser.add_argument("--base", help="the language model that the first MODEL was trained from")
    parser.add_argument("--top", type=int, default=10, help="largest rows to list (default 10)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")
    parser.add_argument("--out", type=Path, help="folder for embeddings.json and the tables")


def run(arguments: argparse.Namespace) -> None:
    found: dict[str, Any] = {}
    norms = {}
    for path in dict.fromkeys([*arguments.models, *([arguments.base] if arguments.base else [])]):
        model, tokenizer = load_language(path, arguments.trust_remote_code)
        embedding = model.get_input_embeddings()
        norms[path] = (embedding_norms(embedding), tokenizer)
        found[path] = {
            "module output": embedding_statistics(norms[path][0]),
            "stored rows": embedding_statistics(embedding_norms(embedding, raw=True)),
            "largest": largest_rows(norms[path][0], tokenizer, arguments.top),
        }
    show_embeddings(found, arguments.out)
    if arguments.base:
        shift = base_against_vl(*norms[arguments.base], *norms[arguments.models[0]])
        found["shift"] = shift
        show(f"{arguments.models[0]} over {arguments.base}", ["", ""], [[k, number(v)] for k, v in shift.items()])
    if arguments.out is not None:
        write_json(arguments.out / "embeddings.json", found)


def show_embeddings(found: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    rows = []
    for model, tables in found.items():
        paper = paper_row("embeddings", model)
        for name in ("module output", "stored rows"):
            norms = tables[name]
            counts = [str(norms[key]) for key in ("count", "zero_rows", "untrained_rows")]
            cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), *counts]
            rows.append([f"{model}: {name}", *cells, spread(paper.get("mean"), paper.get("std"))])
    heads = ["embedding", "mean ± std over rows", "median", "rows", "zero", "untrained", "paper"]
    show("Norms of text embeddings, non-zero rows (Eq. 11, Table 6)", heads, rows, out and out / "embeddings.md")
    for position, (model, tables) in enumerate(found.items()):
        first = paper_row("largest_rows", model)
        rows = [
            [
                str(rank),
                row["token"],
                str(row["id"]),
                number(row["norm"]),
                f"{first.get('token', '')} {number(first['norm'])}" if rank == 1 and first else "-",
            ]
            for rank, row in enumerate(tables["largest"], 1)
        ]
        path = out and out / f"largest-rows-{position}.md"
        show(f"{model}: largest rows (Tables 7-8)", ["rank", "token", "id", "norm", "paper"], rows, path)
