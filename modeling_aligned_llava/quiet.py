"""Keeps the output of our programs to their own lines, without progress bars and warnings of libraries."""

import sys
import warnings

from transformers.utils import logging


# For programs whose lines are read: FORCE_COLOR would make them draw a live table instead.
NOT_A_TERMINAL = {"TTY_COMPATIBLE": "0"}
OURS = "(modeling_aligned_llava|train|eval|tinyworld|__main__)"


def quiet() -> None:
    """Silence progress bars and Python warnings of libraries; errors, logged warnings and our own warnings stay.

    `python -W default` shows the warnings again.
    """
    logging.disable_progress_bar()  # one for each of a dozen small files
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=rf"(?!{OURS}(\.|$))")
