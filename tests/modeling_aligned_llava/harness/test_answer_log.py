import errno
import os

import pytest

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.harness.answer_log import AnswerKey, AnswerLog


def keys(count, **changes):
    fields = {"weights": "w", "task": "pope", "prompt": "p", "image": "i", "settings": "{}"} | changes
    return [AnswerKey(document=index, **fields) for index in range(count)]


@pytest.mark.parametrize("field", ["weights", "task", "prompt", "image", "settings"])
def test_an_answer_to_anything_else_is_not_reused(tmp_path, field):
    log = AnswerLog(tmp_path / "log.jsonl")
    log.append(keys(2), ["yes", "no"])
    assert log.find(keys(2, **{field: "other"})) is None


def test_a_full_disk_leaves_whole_lines_and_the_log_goes_on(tmp_path, monkeypatch):
    path = tmp_path / "log.jsonl"
    log = AnswerLog(path)
    log.append(keys(1), ["yes"])
    before = path.read_bytes()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch, pytest.raises(UserError, match=r"log\.jsonl: no space left"):
        patch.setattr(os, "fsync", full)  # the last moment at which a disk may say so
        log.append(keys(2, task="other"), ["no", "no"])
    assert path.read_bytes() == before and log.find(keys(2, task="other")) is None
    log.append(keys(2), ["yes", "no"])
    assert AnswerLog(path).find(keys(2)) == ["yes", "no"]


def test_every_cut_leaves_a_readable_log_that_can_be_continued(tmp_path):
    path = tmp_path / "log.jsonl"
    answers = ["yes", 'tricky "\n\u2028 \u00f6']
    AnswerLog(path).append(keys(2), answers)
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        log = AnswerLog(path)
        lines = whole[:cut].count(b"\n")
        assert log.find(keys(lines)) == answers[:lines] and log.find(keys(lines + 1)) is None
        log.append(keys(2), answers)
        assert AnswerLog(path).find(keys(2)) == answers


def test_a_broken_line_in_the_middle_is_named(tmp_path):
    path = tmp_path / "log.jsonl"
    AnswerLog(path).append(keys(1), ["yes"])
    path.write_bytes(path.read_bytes() + b"garbage\n")
    with pytest.raises(ValueError, match="line 2"):
        AnswerLog(path)
