"""Train one stage of one method (paper Appendix E).

    python -m train.sft --config configuration/train/tinyworld/stage1.yaml --method norm-gwc

Started again after an interruption, it resumes from the last complete checkpoint; a finished stage is left as it is.
"""

import sys

from train.stage_folder import StageFolder, output_dir, peek_settings, say


def main() -> None:
    settings = peek_settings(sys.argv[1:])
    if settings is not None:
        folder = StageFolder(output_dir(settings))
        if folder.is_complete() and not folder.changed_settings(settings):
            folder.drop_checkpoints()
            say(folder.already_done(settings))
            return
    from modeling_aligned_llava.errors import run_main  # imports torch, which takes seconds
    from train.stage import run_stage

    run_main(lambda: run_stage(sys.argv[1:]))


if __name__ == "__main__":
    main()
