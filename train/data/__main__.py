"""Training data: `prepare` checks and tokenizes the rows of a stage before training; `images` writes their images."""

import argparse
import sys
import time
from itertools import islice
from pathlib import Path

from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading.files import build_once
from train.data.images import first_images
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine
from train.data.sources import read_sources
from train.data.stage_tokens import tokens_without_model
from train.parse import parse_with_backbones
from train.settings import read_settings
from train.stage_folder import say


def prepare(argv: list[str], stage1: Path | None = None) -> None:
    """Prepare the rows of a stage on all cores, for training to find in the cache; no model is loaded.

    Args:
        argv: `--config FILE.yaml --method NAME [--SETTING VALUE ...]`, as for `train.sft`.
        stage1: recipe of stage 1, whose backbones bring the tokenizer while stage 2 has no checkpoint to start from;
            `--vision_tower` and `--language_model` then replace those of this recipe.

    Raises:
        UserError: settings, data or the tokenizer are not usable, or too many rows are damaged.
    """
    settings, backbones = parse_with_backbones(read_settings(argv) | {"bf16": False}, stage1)
    given, training = settings.data, settings.training
    tokens = tokens_without_model(settings, backbones)
    sources = read_sources(given.data_path, given.image_folder)
    start = time.perf_counter()
    data = open_training_data(sources, tokens, given.data_cache, training.seed)
    seconds = time.perf_counter() - start
    quarantine = Quarantine(Path(str(training.output_dir)) / "quarantine.jsonl", data.opened, given.bad_rows_limit)
    quarantine.begin(data.bad_rows)
    say(f"{given.data_path}: {len(data.dataset):,} rows; {quarantine.summary()}")
    say(f"{data.opened:,} rows in {seconds:,.1f} s, {data.opened / seconds:,.0f} rows/s")


def write_images(data_path: str, data_cache: str | None, out: Path, limit: int) -> None:
    """Write the first images of rows that embed them as files, to measure models on.

    Raises:
        UserError: there is none.
    """

    def write(folder: Path) -> None:
        for number, image in enumerate(islice(first_images(read_sources(data_path, None), data_cache), limit)):
            image.save(folder / f"{number:03}.png")
        if not any(folder.iterdir()):
            raise UserError(f"data_path: no row of {data_path} embeds an image; if rows name files, give their folder")

    build_once(out, write)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m train.data", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="check, tokenize and filter the rows of a stage; needs no GPU")
    preparing.add_argument(
        "--stage1", type=Path, metavar="FILE", help="recipe of stage 1, to prepare stage 2 before stage 1 is trained"
    )
    preparing.usage = "%(prog)s --config FILE.yaml --method NAME [--stage1 FILE] [--SETTING VALUE ...]"
    writing = commands.add_parser("images", help="write the first images of rows that embed them")
    writing.add_argument("data_path")
    writing.add_argument("--out", type=Path, required=True, help="folder to make")
    writing.add_argument("--limit", type=int, default=48, help="number of images (default %(default)s)")
    writing.add_argument("--data-cache", help="as for training")
    args, settings = parser.parse_known_args(sys.argv[1:])
    if args.command == "prepare":
        prepare(settings, args.stage1)
    elif settings:
        parser.error(f"unrecognized arguments: {' '.join(settings)}")
    else:
        write_images(args.data_path, args.data_cache, args.out, args.limit)


if __name__ == "__main__":
    run_main(main)
