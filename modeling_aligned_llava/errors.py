"""Errors that a user can cause: one clear line on stderr and exit status 1, no traceback."""

import errno
import sys
from collections.abc import Callable
from typing import NoReturn

from modeling_aligned_llava.quiet import quiet


_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)


class UserError(Exception):
    """An error that the user can fix; its message is one line: what, where and what to do."""


def run_main(main: Callable[[], None]) -> None:
    """Run the `main` of a command-line program; on a `UserError` print `error: ...` and exit with status 1.

    So does a file that cannot be opened or written because the disk is full or read-only, or belongs to somebody else.
    """
    quiet()
    try:
        main()
    except UserError as error:
        # From a data-loading worker the message comes at the end of that worker's traceback.
        _end(str(error).strip().rpartition("\n")[2].removeprefix(f"{__name__}.UserError: "))
    except OSError as error:
        if error.errno not in _OF_THE_DISK:
            raise
        _end(f"{error.filename or 'a file cannot be written'}: {str(error.strerror).lower()}")


def _end(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(1)
