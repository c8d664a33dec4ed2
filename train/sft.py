"""Train one stage of one method (paper Appendix E).

    python -m train.sft --config configuration/train/tinyworld/stage1.yaml --method norm-gwc

Started again after an interruption, it resumes from the last complete checkpoint; a finished stage is left as it is.
"""

import sys

from modeling_aligned_llava.errors import run_main
from train.settings import help_text, output_dir, read_settings
from train.stage_folder import StageFolder, say


def main() -> None:
    argv = sys.argv[1:]
    if {"-h", "--help"} & {*argv}:
        say(help_text("python -m train.sft"))
        return
    given = read_settings(argv)
    folder = StageFolder(output_dir(given))
    if folder.is_complete() and not folder.changed_settings(given):
        folder.drop_checkpoints()
        say(folder.already_done(given))
        return
    from train.stage import run_stage  # here: torch takes seconds

    run_stage(argv)


if __name__ == "__main__":
    run_main(main)
