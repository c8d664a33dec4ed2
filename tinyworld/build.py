"""`python -m tinyworld.build OUT`: training conversations and benchmark mirrors from fixed seeds, in about a minute.

OUT gets stage1.json, stage2.json, images/ and mirrors/. It appears whole or not at all; a finished one is left alone.
"""

import argparse
import os
import shutil
from pathlib import Path

import datasets

from tinyworld.benchmarks import write_benchmarks
from tinyworld.conversations import write_conversations


def build(out: Path, images: int) -> None:
    if out.exists():
        print(f"{out} is there already")  # noqa: T201
        return
    unfinished = out.with_name(f"{out.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    datasets.disable_progress_bars()
    write_conversations(unfinished, images)
    write_benchmarks(unfinished / "mirrors")
    os.replace(unfinished, out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--images", type=int, default=8000, help="training pictures")
    arguments = parser.parse_args()
    build(arguments.out, arguments.images)


if __name__ == "__main__":
    main()
