"""`python -m eval.diagnostics profile MODEL --images DIR`: the norms of Table 2 for a checkpoint, on your pictures."""

import argparse
import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.diagnostics.profile import Profile, profile
from modeling_aligned_llava.errors import run_main


def _print(result: Profile) -> None:
    table = Table(title=f"{result.model}: L2 norms, mean ± standard deviation over tokens")
    for heading in ("where", "mean", "std", "median", "tokens"):
        table.add_column(heading, justify="left" if heading == "where" else "right")
    for where, norms in result.norms.items():
        table.add_row(where, f"{norms.mean:.4f}", f"{norms.std:.4f}", f"{norms.median:.4f}", str(norms.count))
    Console().print(table)
    print(f"visual tokens / text embeddings = {result.ratio:.3f} (over {result.images} images)")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m eval.diagnostics", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("profile", help="norms before and after the projector, and of text")
    one.add_argument("model", help="checkpoint folder or Hub id")
    one.add_argument("--images", type=Path, required=True, help="a picture, or a folder of pictures")
    one.add_argument("--limit", type=int, default=64, help="pictures to look at (default 64)")
    one.add_argument("--json", type=Path, help="also write the profile to this file")
    arguments = parser.parse_args()
    result = profile(arguments.model, arguments.images, arguments.limit)
    _print(result)
    if arguments.json:
        arguments.json.write_text(json.dumps(result.to_dict(), indent=2) + "\n", encoding="utf-8")


run_main(main)
