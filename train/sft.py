"""Train one stage of one method (paper Appendix E).

    python -m train.sft --config configuration/train/tinyworld/stage1.yaml --method norm-gwc

Started again after an interruption, it resumes from the last complete checkpoint; a finished stage is left as it is.
"""

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

from train.stage_folder import StageFolder, output_dir, peek_settings, say


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)  # until run_main takes over
    settings = peek_settings(sys.argv[1:])
    if settings is not None:
        folder = StageFolder(output_dir(settings))
        if folder.is_complete() and not folder.changed_settings(settings):
            folder.drop_checkpoints()
            say(f"{folder.path}: already done")
            return
    from modeling_aligned_llava.errors import run_main  # imports torch, which takes seconds
    from train.stage import run_stage

    run_main(lambda: run_stage(sys.argv[1:]))


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End at once with the line of `Stopped`: while packages are imported, there is nothing to clean up."""
    sys.stderr.write(f"error: stopped by {signal.Signals(number).name}; the same command starts again or continues\n")
    sys.stderr.flush()
    os._exit(128 + number)


if __name__ == "__main__":
    main()
