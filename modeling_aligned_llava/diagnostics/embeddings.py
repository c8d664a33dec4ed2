"""`embeddings`: norms of text embeddings: module output, stored rows, the largest rows (paper Eq. 11, Tables 6-8)."""

import argparse
from pathlib import Path
from typing import Any

from torch import Tensor

from modeling_aligned_llava.diagnostics.instruments.models import load_language
from modeling_aligned_llava.diagnostics.instruments.tables import number, paper_row, show_table, spread
from modeling_aligned_llava.diagnostics.instruments.token_statistics import embedding_statistics
from modeling_aligned_llava.inspection.forward_pass import check_finite
from modeling_aligned_llava.loading.files import write_json
from modeling_aligned_llava.norm_alignment import embedding_norms


def run(arguments: argparse.Namespace) -> None:
    tables = {}
    for path in dict.fromkeys(arguments.models):
        tables[path] = embedding_tables(*load_language(path, arguments.trust_remote_code))
    show_embeddings(tables, arguments.out)
    if arguments.out is not None:
        write_json(arguments.out / "embeddings.json", tables)


def embedding_tables(model: Any, tokenizer: Any) -> dict[str, Any]:
    """Statistics of module output and stored rows, and the largest rows of the output.

    Raises:
        UserError: a row is not finite.
    """
    norms = embedding_norms(model.get_input_embeddings())
    check_finite(norms, model, "the norms of text embeddings")
    stored = embedding_norms(model.get_input_embeddings(), stored=True)
    return {
        "module output": embedding_statistics(norms),
        "stored rows": embedding_statistics(stored),
        "largest": largest_rows(norms, tokenizer),
    }


def largest_rows(norms: Tensor, tokenizer: Any, top: int = 10) -> list[dict[str, Any]]:
    """The `top` rows of largest norm with their tokens; ties are ordered by id."""
    order = sorted(range(len(norms)), key=lambda i: (-norms[i].item(), i))[:top]
    return [{"id": i, "token": repr(tokenizer.decode([i]))[1:-1], "norm": norms[i].item()} for i in order]


def show_embeddings(models: dict[str, dict[str, Any]], out: Path | None = None) -> None:
    """Tables 6-8: norms of the embedding rows, and the largest rows of each model; `out` is a folder."""
    rows = []
    for model, tables in models.items():
        paper = paper_row("embeddings", model)
        for name in ("module output", "stored rows"):
            norms = tables[name]
            counts = [str(norms[key]) for key in ("count", "zero_rows", "untrained_rows")]
            cells = [spread(norms["mean"], norms["std"]), number(norms["median"]), *counts]
            rows.append([f"{model}: {name}", *cells, spread(paper.get("mean"), paper.get("std"))])
    heads = ["embedding", "mean ± std over rows", "median", "rows", "zero", "untrained", "paper"]
    show_table("Norms of text embeddings, non-zero rows (Eq. 11, Table 6)", heads, rows, out and out / "embeddings.md")
    for position, (model, tables) in enumerate(models.items()):
        paper = paper_row("largest_rows", model)
        theirs = f"{paper.get('token', '')} {number(paper['norm'])}" if paper else "-"
        rows = [
            [str(rank), row["token"], str(row["id"]), number(row["norm"]), theirs if rank == 1 else "-"]
            for rank, row in enumerate(tables["largest"], 1)
        ]
        path = out and out / f"largest-rows-{position}.md"
        show_table(f"{model}: largest rows (Tables 7-8)", ["rank", "token", "id", "norm", "paper"], rows, path)
