"""Makes `sheet.webp`, the pictures of the nouns, from the npm package emoji-datasource-google.

    npm pack emoji-datasource-google@16.0.0
    python -m research.pictures.make_sheet emoji-datasource-google-16.0.0.tgz

The pictures are Noto's (Google, Apache-2.0, LICENSE-NOTO).
"""

import argparse
import json
import tarfile
from pathlib import Path

from PIL import Image

from modeling_aligned_llava.errors import run_main
from research.pictures.nouns import EMOJI, NOUNS
from research.pictures.sheet import COLUMNS, SHEET, SIDE


STEP = SIDE + 2  # the package leaves a margin of one pixel around each picture


def make_sheet(package: Path, out: Path) -> None:
    """Write the pictures of all nouns, in their order, `COLUMNS` a row.

    Raises:
        KeyError: a noun has no picture in the package.
    """
    with tarfile.open(package) as archive:
        listed = archive.extractfile("package/emoji.json")
        pictures = archive.extractfile("package/img/google/sheets/64.png")
        assert listed is not None and pictures is not None
        entries = {name: entry for entry in json.load(listed) for name in entry["short_names"]}
        with Image.open(pictures) as image:
            source = image.convert("RGBA")
    sheet = Image.new("RGBA", (COLUMNS * SIDE, -(-len(NOUNS) // COLUMNS) * SIDE))
    for index, noun in enumerate(NOUNS):
        entry = entries[EMOJI.get(noun, noun.replace(" ", "_"))]
        left, top = entry["sheet_x"] * STEP + 1, entry["sheet_y"] * STEP + 1
        picture = source.crop((left, top, left + SIDE, top + SIDE))
        sheet.paste(picture, (index % COLUMNS * SIDE, index // COLUMNS * SIDE))
    sheet.save(out, lossless=True, method=6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, help="the package's .tgz")
    make_sheet(parser.parse_args().package, SHEET)


if __name__ == "__main__":
    run_main(main)
