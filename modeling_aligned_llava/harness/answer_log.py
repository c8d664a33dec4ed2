"""Append-only log of generated answers that survives a kill at any byte; a restarted evaluation continues from it.

An answer is reused only if everything that it depends on is the same: weights, task, document, prompt, image,
generation settings, package versions, answering code and device. Batches are written whole, so a resumed run forms the
same batches, and with them the same answers (in low precision, left padding makes an answer depend on its neighbours).
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from modeling_aligned_llava.loading.files import disk_errors_named


@dataclass(frozen=True)
class AnswerKey:
    """What an answer depends on. `prompt`, `image` and `weights` are sha256 digests; `settings` is canonical JSON."""

    weights: str
    task: str
    document: int
    prompt: str
    image: str
    settings: str


class AnswerLog:
    """A JSONL file with one answer per line; `path=None` keeps the answers in memory only.

    A last line torn by a kill is removed when the file is opened. One writer at a time (the runner holds a lock).

    Raises:
        ValueError: a complete line is not an answer; the message has its number.
    """

    def __init__(self, path: str | Path | None) -> None:
        self._answers: dict[AnswerKey, str] = {}
        self._file: BinaryIO | None = None
        if path is None:
            return
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab+", buffering=0)
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):
            self._file.truncate(whole)
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                row = json.loads(line)
                answer = row.pop("answer")
                self._answers[AnswerKey(**row)] = answer
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(f"{path} line {number} is not an answer ({error}); delete the file") from None

    def find(self, keys: list[AnswerKey]) -> list[str] | None:
        """Return the answers of one batch, or None unless all of them are known."""
        answers = [self._answers.get(key) for key in keys]
        return None if None in answers else [answer for answer in answers if answer is not None]

    def append(self, keys: list[AnswerKey], answers: list[str]) -> None:
        """Write one batch and wait until it is on the disk.

        Raises:
            UserError: the disk is full; the file is what it was.
        """
        if self._file is not None:
            lines = (json.dumps(asdict(key) | {"answer": answer}) for key, answer in zip(keys, answers, strict=True))
            with disk_errors_named(self._file.name):
                self._write("".join(line + "\n" for line in lines).encode())
        self._answers.update(zip(keys, answers, strict=True))

    def _write(self, block: bytes) -> None:
        assert self._file is not None
        end = self._file.seek(0, os.SEEK_END)
        try:
            while block:
                block = block[self._file.write(block) :]
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)  # a part of a line in the middle of the file would make it unreadable
            raise

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
