"""Show training rows as the model sees them, with supervised tokens in colour, and a summary of the data.

python -m train.preview --config configuration/train/tinyworld/stage2.yaml --method norm-gwc [--rows 3] [--first 0]

It accepts every setting of the stage and loads no model. Training reuses the rows it prepares.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterable

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from modeling_aligned_llava.errors import UserError, run_main
from train.data.images import open_row
from train.data.prepared import TrainingData, open_training_data, read_column, row_lengths
from train.data.quarantine import counts_of
from train.data.row_tokens import Kind, RowTokens
from train.data.sources import read_sources
from train.data.stage_tokens import tokens_without_model
from train.parse import parse_settings
from train.settings import read_settings


SUPERVISED = "bold green"
_STYLES = {"supervised": SUPERVISED, "image": "cyan"}


def run_preview(argv: list[str], console: Console) -> None:
    """Print rows and the summary of the stage that the command line describes.

    Raises:
        UserError: settings, data or the tokenizer are not usable.
    """
    parser = argparse.ArgumentParser(prog="python -m train.preview", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=3, help="number of rows to show")
    parser.add_argument("--first", type=int, default=0, help="index of the first row to show")
    ours, theirs = parser.parse_known_args(argv)
    settings = parse_settings(read_settings(theirs) | {"bf16": False})
    encoder = tokens_without_model(settings)
    data = open_training_data(
        read_sources(settings.data.data_path, settings.data.image_folder),
        encoder,
        settings.data.data_cache,
        int(settings.training.seed),
        settings.monitoring.eval_rows,
    )
    shown = range(ours.first, min(ours.first + ours.rows, len(data.dataset)))
    for number in shown:
        _show_row(data, number, encoder, console)
    console.print(_summary(data, encoder))


def _show_row(data: TrainingData, number: int, encoder: RowTokens, console: Console) -> None:
    row, stored = data.dataset[number], data.dataset.with_format(None)
    console.rule(f"row {row['row']} of {data.sources[row['source']].path}")
    for name in row["images"]:
        try:
            (image,) = open_row(data, {**row, "images": [name]})
            seen = f"{image.width} x {image.height}"
        except UserError as error:
            seen = f"cannot be used, another row will replace it: {error}"
        console.print(Text(f"image {name}: {seen}", style="dim"))
    (supervised,) = encoder.supervised(stored[number : number + 1])
    console.print(Text(f"{row['length']} tokens, {supervised} supervised", style="dim"))
    console.print(render(encoder.pieces(row), marks=not console.is_terminal), soft_wrap=True)


def render(pieces: Iterable[tuple[Kind, str]], marks: bool) -> Text:
    """A row as text; what is supervised is coloured and, with `marks`, enclosed in [[ ]]."""
    text = Text()
    for kind, piece in pieces:
        enclosed = f"[[{piece}]]" if kind == "supervised" and marks else piece
        text.append(enclosed, style=_STYLES.get(kind, ""))
    return text


def _summary(data: TrainingData, encoder: RowTokens) -> Table:
    lengths = row_lengths(data.dataset)
    supervised, images = [], []
    for batch in data.dataset.with_format("numpy", columns=[*encoder.columns, "images"]).iter(1000):
        supervised += encoder.supervised(batch)
        images += [len(names) for names in batch["images"]]
    table = Table("", "", title="summary", show_header=False)
    for column in table.columns:
        column.overflow = "fold"
    table.add_row("rows opened", f"{data.opened:,}")
    table.add_row("rows to train on", f"{len(lengths):,} (of which {images.count(0):,} text-only)")
    if data.evaluation is not None:
        table.add_row("rows held out", f"{len(data.evaluation):,}")
    if len(data.sources) > 1:
        counts = Counter(read_column(data.dataset, "source").tolist())
        for number, source in enumerate(data.sources):
            table.add_row(f"  {source.path} (weight {source.weight:g})", f"{counts[number]:,}")
    table.add_row("rows left out", counts_of(data.bad_rows))
    table.add_row("images", f"{sum(images):,}")
    if len(lengths):
        for name, values in (("tokens per row", lengths), ("supervised per row", np.array(supervised))):
            low, middle, high, most = np.percentile(values, [0, 50, 95, 100], method="nearest")
            table.add_row(name, f"median {middle:,}, 95th percentile {high:,}, minimum {low:,}, maximum {most:,}")
        share = sum(supervised) / int(lengths.sum())
        table.add_row("tokens", f"{int(lengths.sum()):,}, of which {sum(supervised):,} supervised ({share:.1%})")
    return table


def main() -> None:
    run_main(lambda: run_preview(sys.argv[1:], Console()))


if __name__ == "__main__":
    main()
