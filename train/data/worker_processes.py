"""Worker processes that end when the process that forked them is killed."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


_watched: int | None = None


@contextmanager
def workers_end_with_us() -> Iterator[None]:
    """Let processes forked inside the block end within a second of this one, however it ends.

    Otherwise, the pool of `datasets.map` and the manager of its queue would wait forever, and keep the pipes and locks
    that they inherited.
    """
    global _watched
    _watched = os.getpid()
    try:
        yield
    finally:
        _watched = None


def _watch() -> None:
    if _watched is not None:
        threading.Thread(target=_end_after, args=(_watched,), daemon=True).start()


def _end_after(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


os.register_at_fork(after_in_child=_watch)
