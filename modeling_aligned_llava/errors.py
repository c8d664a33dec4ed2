"""Errors a user can cause: one clear line on stderr and exit status 1, never a traceback."""

import sys
from collections.abc import Callable

from modeling_aligned_llava.quiet import quiet


class UserError(Exception):
    """Something the user can put right; its message is one line that says what, where and what to do."""


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a command-line program; a `UserError` ends it with `error: ...` and exit status 1."""
    quiet()
    try:
        main()
    except UserError as error:
        # Out of a data-loading worker the message comes below that worker's traceback.
        line = str(error).strip().rpartition("\n")[2].removeprefix(f"{__name__}.UserError: ")
        print(f"error: {line}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
