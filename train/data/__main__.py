"""Training data: `fetch` downloads the paper's, `prepare` checks and tokenizes the rows of a stage before training."""

import argparse
import sys
from pathlib import Path

from huggingface_hub import HfApi

from modeling_aligned_llava.errors import run_main
from train.data.fetch import SETS, fetch
from train.data.prepare import prepare


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m train.data", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    fetching = commands.add_parser("fetch", help="download a dataset of the paper; resumable")
    fetching.add_argument("name", choices=SETS)
    fetching.add_argument("--out", type=Path, required=True, help="folder; one for both datasets and all backbones")
    fetching.add_argument("--revision", help="another commit, branch or tag than the recorded one")
    fetching.add_argument("--remove-zip", action="store_true", help="remove images.zip after it was extracted")
    preparing = commands.add_parser("prepare", help="check, tokenize and filter the rows of a stage; needs no GPU")
    preparing.add_argument(
        "--stage1", type=Path, metavar="FILE", help="recipe of stage 1, to prepare stage 2 before stage 1 is trained"
    )
    preparing.usage = "%(prog)s --config FILE.yaml --method NAME [--stage1 FILE] [--SETTING VALUE ...]"
    args, settings = parser.parse_known_args(sys.argv[1:])
    if args.command == "prepare":
        prepare(settings, args.stage1)
    elif settings:
        parser.error(f"unrecognized arguments: {' '.join(settings)}")
    else:
        fetch(args.name, args.out, HfApi(), args.revision, args.remove_zip)


if __name__ == "__main__":
    run_main(main)
