"""Keeps the output of our programs to their own lines, without progress bars and warnings of libraries."""

import sys
import warnings

from huggingface_hub.utils import disable_progress_bars


# For programs whose lines are read: FORCE_COLOR would make them draw a live table instead.
NOT_A_TERMINAL = {"TTY_COMPATIBLE": "0"}
OURS = "(modeling_aligned_llava|train|eval|tinyworld|__main__)"


def quiet() -> None:
    """Silence progress bars and Python warnings of libraries; errors, logged warnings and our own warnings stay.

    `python -W default` shows the warnings again.
    """
    disable_progress_bars()  # one for each of a dozen small files; transformers, imported later, follows it
    if "transformers" in sys.modules:
        sys.modules["transformers"].utils.logging.disable_progress_bar()
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=rf"(?!{OURS}(\.|$))")
