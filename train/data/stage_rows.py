"""The rows of a stage, split into training and evaluation rows; those left out are listed."""

from pathlib import Path

from trl import SFTConfig

from modeling_aligned_llava.errors import UserError
from train.arguments.parse import RunArguments
from train.data.prepared import open_training_data
from train.data.quarantine import Quarantine
from train.data.row_images import RowImages
from train.data.sources import Source
from train.data.tokenization import RowEncoder
from train.stage_folder import say


def open_rows(run: RunArguments, training: SFTConfig, encoder: RowEncoder, sources: list[Source]) -> RowImages:
    """Open the rows of `sources` and write those that cannot be used to `quarantine.jsonl`.

    Raises:
        UserError: the data cannot be read, or leaves too few usable rows.
    """
    path = Path(str(training.output_dir)) / "quarantine.jsonl"
    data = open_training_data(sources, encoder, run.data.data_cache, training.seed, run.monitoring.eval_rows)
    quarantine = Quarantine(path, data.opened, run.data.bad_rows_limit)
    if training.process_index == 0:
        quarantine.begin(data.bad_rows)
        say(f"{run.data.data_path}: {len(data.dataset)} rows; {quarantine.summary()}")
        if data.evaluation is not None:
            held, wanted = len(data.evaluation), run.monitoring.eval_rows
            why = "" if held == wanted else f" instead of {wanted}: rows of the same image or text stay together"
            say(f"{held} rows held out{why}")
        if (ending := encoder.ending()) is not None:
            say(f"end token of an answer: {ending[0]!r}, {ending[1]}")
    if not len(data.dataset):
        raise UserError(f"{run.data.data_path}: there is no row to train on; see {path}")
    return RowImages(data, quarantine, training.seed)
