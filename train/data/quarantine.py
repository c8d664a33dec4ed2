"""`quarantine.jsonl`: every row that is not trained on, with file, row and reason, and the limit of their share.

Damaged rows count towards the limit. Filtered rows, which are sound but do not fit the recipe, do not.

Rows found during preparation come first; workers append those whose image fails later. Each line is appended in one
write, so that workers and ranks can share the file, and rows counted before an interruption count after it.
"""

import errno
import json
import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.files import disk_errors_named, replacing


class Entry(NamedTuple):
    """One quarantined row, damaged unless `filtered`."""

    file: str
    row: int
    id: str | None
    reason: str
    detail: str
    when: str = "opening"
    filtered: bool = False

    def line(self) -> str:
        """The entry as a line of JSON."""
        return json.dumps(self._asdict()) + "\n"


class Quarantine:
    """The file of one run.

    Args:
        path: `<output_dir>/quarantine.jsonl`.
        rows: number of all rows, usable or not.
        limit: largest share of them that may be damaged.
    """

    def __init__(self, path: str | Path, rows: int, limit: float):
        self.path = Path(path)
        self.rows = rows
        self.limit = limit
        self._known: set[tuple[str, int, str]] | None = None  # read by each worker when its first row fails

    def begin(self, bad_rows: Iterable[Entry]) -> None:
        """Write the rows found during preparation, and keep those that an earlier start found during training.

        Raises:
            UserError: more rows are damaged than the limit allows.
        """
        kept = [entry for entry in read_entries(self.path) if entry.when == "training"]
        with replacing(self.path) as unfinished, unfinished.open("w", encoding="utf-8") as file:
            file.writelines(entry.line() for entry in (*bad_rows, *kept))
        self.check()

    def add(self, entry: Entry) -> None:
        """Append a row unless it is listed already; safe to call from any worker.

        Raises:
            UserError: more rows are damaged than the limit allows, or the disk is full.
        """
        if self._known is None:
            self._known = {_key(known) for known in read_entries(self.path)}
        if _key(entry) in self._known:
            return
        self._known.add(_key(entry))
        with disk_errors_named(self.path), self.path.open("ab", buffering=0) as file:
            line = entry.line().encode()
            if file.write(line) < len(line):  # the rest did not fit; the next start drops this part of a line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.check()

    def check(self) -> None:
        """Compare the number of damaged rows with the limit.

        Raises:
            UserError: there are more; the message has the reasons and their counts.
        """
        reasons = {(entry.file, entry.row): entry.reason for entry in read_entries(self.path) if not entry.filtered}
        if len(reasons) > self.limit * self.rows:
            counts = ", ".join(f"{count} x {reason}" for reason, count in Counter(reasons.values()).most_common(5))
            raise UserError(
                f"{len(reasons)} of {self.rows} rows are damaged, more than the {self.limit:.2%} of "
                f"bad_rows_limit: {counts}; they are listed in {self.path}"
            )

    def summary(self) -> str:
        """One line such as `9 filtered (9 x ...), 3 damaged (2 x ..., 1 x ...), see ...`."""
        entries = {_key(entry): entry for entry in read_entries(self.path)}
        return counts_of(entries.values()) + (f", see {self.path}" if entries else "")


def counts_of(entries: Iterable[Entry]) -> str:
    """The numbers of filtered and of damaged rows, with their reasons: `9 filtered (9 x ...), 0 damaged`."""
    counts: dict[str, Counter[str]] = {"filtered": Counter(), "damaged": Counter()}
    for entry in entries:
        counts["filtered" if entry.filtered else "damaged"][entry.reason] += 1
    return ", ".join(
        f"{reasons.total():,} {kind}"
        + (f" ({', '.join(f'{count:,} x {reason}' for reason, count in reasons.most_common())})" if reasons else "")
        for kind, reasons in counts.items()
    )


def read_entries(path: Path) -> list[Entry]:
    """The rows of a quarantine file; an incomplete last line is skipped."""
    if not path.exists():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8").split("\n")[:-1]:
        with suppress(ValueError, TypeError):
            entries.append(Entry(**json.loads(line)))
    return entries


def _key(entry: Entry) -> tuple[str, int, str]:
    return entry.file, entry.row, entry.reason
