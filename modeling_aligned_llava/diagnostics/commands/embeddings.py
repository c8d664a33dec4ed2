"""`embeddings MODEL ... [--base MODEL]`: norms of text embeddings, largest rows, base against VL (Tables 1, 6-8)."""

import argparse
from pathlib import Path
from typing import Any

from modeling_aligned_llava.diagnostics.hooks.loading import load_language
from modeling_aligned_llava.diagnostics.measure.embeddings import base_against_vl, embedding_tables
from modeling_aligned_llava.diagnostics.output.result_tables import show_embeddings
from modeling_aligned_llava.diagnostics.output.tables import number, show_table
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import embedding_norms


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("models", nargs="+", metavar="MODEL", help="language or vision-language models")
    parser.add_argument("--base", help="the language model that the first MODEL was trained from")
    parser.add_argument("--top", type=int, default=10, help="number of largest rows to list (default 10)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")
    parser.add_argument("--out", type=Path, help="folder for embeddings.json and the tables")


def run(arguments: argparse.Namespace) -> None:
    found: dict[str, Any] = {}
    norms = {}
    for path in dict.fromkeys([*arguments.models, *([arguments.base] if arguments.base else [])]):
        model, tokenizer = load_language(path, arguments.trust_remote_code)
        norms[path] = (embedding_norms(model.get_input_embeddings()), tokenizer)
        found[path] = embedding_tables(model, *norms[path], arguments.top)
    show_embeddings(found, arguments.out)
    if arguments.base:
        shift = base_against_vl(*norms[arguments.base], *norms[arguments.models[0]])
        found["shift"] = shift
        title = f"{arguments.models[0]} over {arguments.base}"
        show_table(title, ["", ""], [[name, number(value)] for name, value in shift.items()])
    if arguments.out is not None:
        write_json(arguments.out / "embeddings.json", found)
