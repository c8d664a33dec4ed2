"""`profile MODEL --images DIR | --data ROOT`: the norms of Table 2 and the layers of Figs. 3-4, as one JSON."""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eval.diagnostics.pictures import Picture, in_benchmarks, in_folder
from eval.diagnostics.profile import profile
from eval.diagnostics.ranks import is_first
from eval.diagnostics.tables import PAPER, number, show, spread
from modeling_aligned_llava.errors import UserError


FOLDER_LIMIT, SAMPLE_LIMIT = 64, 1000


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="checkpoint folder or Hub id")
    parser.add_argument("--connector", help="module between vision and language, where its name is an unusual one")
    parser.add_argument("--trust-remote-code", action="store_true", help="run the code in the checkpoint's repository")


def add_pictures(parser: argparse.ArgumentParser) -> None:
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--images", type=Path, help="a picture, or a folder of pictures")
    source.add_argument("--data", type=Path, help="data root: a sample of MMBench, POPE and MM-Star, seed 42")
    parser.add_argument("--limit", type=int, help=f"pictures (default {FOLDER_LIMIT}, with --data {SAMPLE_LIMIT})")


def pictures(arguments: argparse.Namespace) -> list[Picture]:
    """The pictures that the command line names; UserError without any."""
    if arguments.limit is not None and arguments.limit < 1:
        raise UserError(f"--limit {arguments.limit}: at least 1 picture is needed")
    if arguments.data is not None:
        return in_benchmarks(arguments.data, arguments.limit or SAMPLE_LIMIT)
    return in_folder(arguments.images, arguments.limit or FOLDER_LIMIT)


@contextmanager
def readable_pictures(arguments: argparse.Namespace) -> Iterator[list[Picture]]:
    """The named pictures that can be read; those that cannot are reported when the `with` block has done its work.

    Raises:
        UserError: a picture cannot be read.
    """
    readable, reasons = [], []
    for picture in pictures(arguments):
        try:
            picture.open()
            readable.append(picture)
        except UserError as error:
            reasons.append(str(error))
    if not readable:
        raise UserError(reasons[0])
    yield readable
    if reasons:
        raise UserError(f"{len(reasons)} pictures could not be read, such as: {reasons[0]}; the rest was measured")


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


def paper_row(table: str, model: str) -> dict[str, Any]:
    """The paper's row whose key occurs in the model's name; empty if none does."""
    name = Path(model).name.lower()
    return next((row for key, row in PAPER[table].items() if key in name), {})
