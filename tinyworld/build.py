"""`python -m tinyworld.build OUT`: training conversations and benchmark mirrors from fixed seeds, in about a minute.

`--world MODULE` builds the `WORLD` of another module instead.

OUT gets stage1.json, stage2.json, images/ and mirrors/. It appears whole or not at all; a finished one is left alone.
"""

import argparse
from importlib import import_module
from pathlib import Path

import datasets

from modeling_aligned_llava.errors import run_main
from modeling_aligned_llava.loading.files import build_once
from tinyworld.benchmarks import write_benchmarks
from tinyworld.conversations import write_conversations
from tinyworld.world import WORLD, World


def build(out: Path, images: int, world: World = WORLD) -> None:
    def write(folder: Path) -> None:
        datasets.disable_progress_bars()
        write_conversations(folder, world, images)
        write_benchmarks(folder / "mirrors", world)

    if not build_once(out, write):
        print(f"{out} is there already")  # noqa: T201


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=8000, help="training images")
    parser.add_argument("--world", metavar="MODULE", default="tinyworld.world")
    arguments = parser.parse_args()
    build(arguments.out, arguments.images, import_module(arguments.world).WORLD)


if __name__ == "__main__":
    run_main(main)
