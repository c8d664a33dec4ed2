"""Prepare the rows of a stage on all cores before GPUs are rented for it; training then finds them in the cache.

It accepts every setting of `train.sft` and loads no model.
"""

import time
from pathlib import Path

from train.arguments.parse import parse_with_backbones
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine
from train.data.sources import read_sources
from train.data.stage_tokenization import stage_tokenization
from train.stage_folder import say


def prepare(argv: list[str], stage1: Path | None = None) -> None:
    """Prepare the rows that the command line describes, and print how many there are and how fast it was.

    Args:
        argv: `--config FILE.yaml --method NAME [--SETTING VALUE ...]`, as for `train.sft`.
        stage1: recipe of stage 1, whose backbones bring the tokenizer while stage 2 has no checkpoint to start from;
            `--vision_tower` and `--language_model` then replace those of this recipe.

    Raises:
        UserError: settings, data or the tokenizer are not usable, or too many rows are damaged.
    """
    run, training, backbones = parse_with_backbones([*argv, "--bf16", "false"], stage1)
    how = stage_tokenization(run, training, backbones)
    sources = read_sources(run.data.data_path, run.data.image_folder)
    start = time.perf_counter()
    data = open_training_data(sources, how, run.data.data_cache, training.seed)
    seconds = time.perf_counter() - start
    quarantine = Quarantine(Path(str(training.output_dir)) / "quarantine.jsonl", data.opened, run.data.bad_rows_limit)
    quarantine.begin(data.bad_rows)
    say(f"{run.data.data_path}: {len(data.dataset):,} rows; {quarantine.summary()}")
    say(f"{data.opened:,} rows in {seconds:,.1f} s, {data.opened / seconds:,.0f} rows/s")
