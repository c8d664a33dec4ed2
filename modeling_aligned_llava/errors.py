"""Errors that a user can cause: one clear line on stderr and exit status 1, no traceback."""

import sys
from collections.abc import Callable

from modeling_aligned_llava.quiet import quiet


class UserError(Exception):
    """An error that the user can fix; its message is one line: what, where and what to do."""


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a command-line program; on a `UserError` print `error: ...` and exit with status 1."""
    quiet()
    try:
        main()
    except UserError as error:
        # From a data-loading worker the message comes at the end of that worker's traceback.
        line = str(error).strip().rpartition("\n")[2].removeprefix(f"{__name__}.UserError: ")
        print(f"error: {line}", file=sys.stderr)  # noqa: T201
        sys.exit(1)
