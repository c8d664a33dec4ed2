"""Programs show their own lines; bars of libraries, and warnings that ask nothing of the user, they do not."""

import sys
import warnings

from transformers.utils import logging


OURS = "(modeling_aligned_llava|train|eval|tinyworld|__main__)"


def quiet() -> None:
    """Silence what libraries show. Errors, logged warnings and the warnings of this repository are left alone.

    `python -W default` brings the warnings back.
    """
    logging.disable_progress_bar()  # one for each of a dozen small files
    if not sys.warnoptions:
        warnings.filterwarnings("ignore", module=rf"(?!{OURS}(\.|$))")
