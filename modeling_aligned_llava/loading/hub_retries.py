"""Talk to the Hub through short trouble: bounded retries with backoff, then one clear line."""

import errno
import re
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

from huggingface_hub import constants
from huggingface_hub.errors import HfHubHTTPError
from huggingface_hub.utils import get_session
from tqdm import tqdm

from modeling_aligned_llava.errors import OF_THE_DISK, UserError


WAITS = (1, 2, 4, 8)  # seconds before each further attempt; the Hub's client makes some of its own within each
LONGEST_WAIT = 60  # seconds; a Hub that asks for more is given up
SILENCE = 60.0  # seconds without a byte after which a connection is given up; the Hub's client would wait forever
_BUSY = {408, 425, 429, 500, 502, 503, 504}
_LOCAL = {*OF_THE_DISK, errno.EPERM, errno.ENOENT, errno.EIO}

Result = TypeVar("Result")


class Damaged(Exception):
    """What arrived is incomplete, or not what the Hub has; worth another attempt."""


def with_retries(work: Callable[[], Result], what: str) -> Result:
    """Return `work()`, called again after timeouts, cut connections, a busy Hub and damaged content.

    Args:
        work: continues where it was, or may be repeated.
        what: begins the error message, such as "cannot fetch owner/name".

    Raises:
        UserError: the Hub refuses, or the last attempt failed too.
    """
    for attempt, wait in enumerate([*WAITS, None], start=1):
        _end_silence()
        try:
            return work()
        except UserError:
            raise
        except Exception as error:  # anything the Hub's client raises, including errors of its HTTP library
            asked = _retry_after(error)
            if wait is None or not _may_pass(error) or asked > LONGEST_WAIT:
                raise UserError(f"{what}: {_in_a_line(error)}{_hint(attempt, asked)}") from error
            tqdm.write(f"{what}: {_in_a_line(error)}; again in {max(wait, asked)} s", file=sys.stderr)
            time.sleep(max(wait, asked))
    raise AssertionError("unreachable")


def _end_silence() -> None:
    """Give the requests of the Hub's client a timeout; most of its calls ask for none."""
    hooks = get_session().event_hooks
    if _with_timeout not in hooks["request"]:
        hooks["request"].append(_with_timeout)


def _with_timeout(request: Any) -> None:
    waits = {"connect": None, "read": None, "write": None, "pool": None} | request.extensions.get("timeout", {})
    request.extensions["timeout"] = {what: SILENCE if wait is None else wait for what, wait in waits.items()}


def _answers(error: BaseException | None) -> list[HfHubHTTPError]:
    """The Hub's own answers among an error and its causes."""
    found = []
    while error is not None:
        if isinstance(error, HfHubHTTPError) and getattr(error, "response", None) is not None:
            found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _may_pass(error: Exception) -> bool:
    if answers := _answers(error):
        return answers[0].response.status_code in _BUSY
    if constants.HF_HUB_OFFLINE or (isinstance(error, OSError) and error.errno in _LOCAL):
        return False
    if isinstance(error, RuntimeError) and "client has been closed" in str(error):
        return True  # by another thread of the download, whose connection failed
    # The Hub's client has changed its HTTP library before, so that one is known by its base class.
    return isinstance(error, (Damaged, OSError, HfHubHTTPError.__bases__[0]))


def _retry_after(error: Exception) -> int:
    """Seconds that the Hub asks to wait; 0 if it does not say."""
    asked = [answer.response.headers.get("Retry-After", "") for answer in _answers(error)]
    return max((int(seconds) for seconds in asked if seconds.isdecimal()), default=0)


def _in_a_line(error: Exception) -> str:
    """The error without the queries of addresses: those of signed ones are keys."""
    text = re.sub(r"(https?://[^\s?'\"]+)\?[^\s'\"]*", r"\1", " ".join(str(error).split()))
    return f"{type(error).__name__}: {text[:300]}"


def _hint(attempt: int, asked: int) -> str:
    if asked > LONGEST_WAIT:
        return f"; it asks to wait {asked} s: start again then"
    return f"; {attempt} attempts failed: start again later, what has arrived is kept" if attempt > 1 else ""
