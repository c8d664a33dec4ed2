"""Show training rows as the model sees them, with supervised tokens in colour, and a summary of the data.

python -m train.preview --config configuration/train/tinyworld/stage2.yaml --method norm-gwc [--rows 3] [--first 0]

It accepts every setting of the stage and loads no model. Training reuses the rows it prepares.
"""

import argparse
import sys
from collections import Counter

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text
from transformers import PreTrainedTokenizerBase

from modeling_aligned_llava.errors import UserError, run_main
from train.arguments.parse import parse_arguments
from train.data.conversations import NO_FILE
from train.data.prepared import TrainingData, open_training_data, read_column, row_lengths
from train.data.row_images import open_row
from train.data.sources import read_sources
from train.data.stage_tokenization import stage_tokenization
from train.data.tokenization import IGNORE_INDEX, Tokenization


SUPERVISED = "bold green"


def run_preview(argv: list[str], console: Console) -> None:
    """Print rows and the summary of the stage that the command line describes.

    Raises:
        UserError: settings, data or the tokenizer are not usable.
    """
    parser = argparse.ArgumentParser(prog="python -m train.preview", description=__doc__, allow_abbrev=False)
    parser.add_argument("--rows", type=int, default=3, help="number of rows to show")
    parser.add_argument("--first", type=int, default=0, help="index of the first row to show")
    ours, theirs = parser.parse_known_args(argv)
    run, training = parse_arguments([*theirs, "--bf16", "false"])
    how = stage_tokenization(run, training)
    data = open_training_data(
        read_sources(run.data.data_path, run.data.image_folder), how, run.data.data_cache, seed=int(training.seed)
    )
    shown = range(ours.first, min(ours.first + ours.rows, len(data.dataset)))
    for number in shown:
        _show_row(data, number, how, console)
    console.print(_summary(data))


def _show_row(data: TrainingData, number: int, how: Tokenization, console: Console) -> None:
    row = data.dataset[number]
    supervised = sum(label != IGNORE_INDEX for label in row["labels"])
    console.rule(f"row {row['row']} of {data.sources[row['source']].path}")
    for name in row["images"]:
        try:
            (image,), changes = open_row(data, {**row, "images": [name]})
            seen = f"{image.width} x {image.height}" + "".join(f", {change}" for _, change in changes)
        except UserError as error:
            seen = f"cannot be used, another row will replace it: {error}"
        console.print(Text(f"image {name}: {seen}", style="dim"))
    console.print(Text(f"{row['length']} tokens, {supervised} supervised", style="dim"))
    console.print(render(row["input_ids"], row["labels"], how, marks=not console.is_terminal), soft_wrap=True)


def render(ids: list[int], labels: list[int], how: Tokenization, marks: bool = False) -> Text:
    """The tokens of a row as text; supervised tokens are coloured and, with `marks`, enclosed in [[ ]]."""
    text = Text()
    start = 0
    for end in range(1, len(ids) + 1):
        kind = _kind(ids, labels, start, how)
        if end < len(ids) and _kind(ids, labels, end, how) == kind:
            continue
        if kind == "image":
            text.append(f"<image x {end - start}>", style="cyan")
        else:
            words = _decode(how.tokenizer, ids[start:end])
            supervised = kind == "supervised"
            text.append(f"[[{words}]]" if supervised and marks else words, style=SUPERVISED if supervised else "")
        start = end
    return text


def _kind(ids: list[int], labels: list[int], at: int, how: Tokenization) -> str:
    return "image" if ids[at] == how.image_token_id else "given" if labels[at] == IGNORE_INDEX else "supervised"


def _decode(tokenizer: PreTrainedTokenizerBase, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


def _summary(data: TrainingData) -> Table:
    lengths = row_lengths(data.dataset)
    supervised, images = [], []
    for batch in data.dataset.with_format("numpy", columns=["assistant_masks", "images"]).iter(1000):
        supervised += [int(mask.sum()) for mask in batch["assistant_masks"]]
        images += [len(names) for names in batch["images"]]
    reasons = {
        kind: Counter(entry.reason for entry in data.bad_rows if entry.filtered == (kind == "filtered"))
        for kind in ("filtered", "damaged")
    }
    table = Table("", "", title="summary", show_header=False)
    for column in table.columns:
        column.overflow = "fold"
    table.add_row("rows opened", f"{data.opened:,}")
    table.add_row("rows to train on", f"{len(lengths):,} (of which {images.count(0):,} text-only)")
    if len(data.sources) > 1:
        counts = Counter(read_column(data.dataset, "source").tolist())
        for number, source in enumerate(data.sources):
            table.add_row(f"  {source.path} (weight {source.weight:g})", f"{counts[number]:,}")
    for kind, counts in reasons.items():
        table.add_row(f"rows {kind}", f"{counts.total():,}")
        for reason, count in counts.most_common():
            table.add_row(f"  {reason}", f"{count:,}")
    table.add_row("images", f"{sum(images):,} found, missing in {reasons['damaged'][NO_FILE]:,} rows")
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
