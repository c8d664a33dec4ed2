"""`profile MODEL --images DIR | --data ROOT`: the norms of Table 2 and the layers of Figs. 3-4, as one JSON."""

import argparse
from pathlib import Path
from typing import Any

from eval.diagnostics.command_line import add_model, add_pictures, pictures
from eval.diagnostics.hooks.distributed import is_first
from eval.diagnostics.measure.profile import profile
from eval.diagnostics.output.tables import number, paper_row, show, spread
from modeling_aligned_llava.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model(parser)
    add_pictures(parser)
    parser.add_argument("--json", type=Path, help="write the profile to this file, also while it grows")


def run(arguments: argparse.Namespace) -> None:
    result = profile(
        arguments.model, pictures(arguments), arguments.json, arguments.connector, arguments.trust_remote_code
    )
    if is_first():
        _show(result)
    if result["unreadable"]:
        first = result["unreadable"][0]["reason"]
        kept = f"; the rest is in {arguments.json}" if arguments.json else ""
        raise UserError(f"{len(result['unreadable'])} pictures could not be read, such as: {first}{kept}")


def _show(result: dict[str, Any]) -> None:
    show_norms(result)
    print(  # noqa: T201
        f"visual tokens / text embeddings = {result['ratio']:.3f} of means (the paper's), "
        f"{result['median_ratio']:.3f} of medians (over {result['images']} images)"
    )


def show_norms(result: dict[str, Any], out: Path | None = None) -> None:
    """Table 2: every stage, with the paper's value where the model is one of its."""
    paper = paper_row("projectors", result["model"])
    beside = {
        "connector input": paper.get("before"),
        "visual tokens at layer 0": paper.get("after"),
        "text embeddings": {"mean": paper["text"], "std": None} if paper else None,
    }
    rows = []
    for where, norms in result["norms"].items():
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
    show(f"{result['model']}: L2 norms", heads, rows, out)
