"""What is written is there whole; a full or read-only disk is named in one line, however a library reports it."""

import errno
import os

import pytest
from safetensors import SafetensorError

from modeling_aligned_llava.errors import UserError, run_main
from modeling_aligned_llava.loading import files
from modeling_aligned_llava.loading.files import disk_errors_named, replacing, write_text


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def wrapped() -> Exception:
    error = ValueError("generation failed")
    error.__cause__ = full()
    return error


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (full(), "no space left"),
        (wrapped(), "no space left"),
        (SafetensorError("I/O error: No space left on device (os error 28)"), "no space left"),
        (OSError(errno.EROFS, "Read-only file system"), "read-only"),
    ],
)
def test_the_file_and_the_reason_are_named(error, reason):
    with pytest.raises(UserError, match=rf"^cannot write a/b\.json: .*{reason}.*$"), disk_errors_named("a/b.json"):
        raise error


@pytest.mark.parametrize(
    "text",
    ["[enforce fail at inline_container.cc:671] . unexpected pos 576 vs 534", "basic_ios::clear: iostream error"],
)
def test_what_torch_does_not_say_is_looked_up(tmp_path, monkeypatch, text):
    error = RuntimeError(text)
    with pytest.raises(RuntimeError), disk_errors_named(tmp_path / "there is room"):
        raise error
    monkeypatch.setattr(files, "_FULL", 1 << 60)
    with pytest.raises(UserError, match="no space left"), disk_errors_named(tmp_path / "missing" / "optimizer.pt"):
        raise error


@pytest.mark.parametrize("error", [ZeroDivisionError(), FileNotFoundError(errno.ENOENT, "no"), UserError("mine")])
def test_other_errors_stay_as_they_are(error):
    with pytest.raises(type(error)) as raised, disk_errors_named("a"):
        raise error
    assert raised.value is error


def test_a_file_that_cannot_be_replaced_stays(tmp_path):
    file = tmp_path / "scores.json"
    file.write_text("old")
    with pytest.raises(UserError, match=r"scores\.json: no space left"), replacing(file) as unfinished:
        unfinished.write_text("ne")
        raise full()
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_a_program_ends_with_one_line(capsys):
    def main():
        raise PermissionError(errno.EACCES, "Permission denied", "results/x")

    with pytest.raises(SystemExit):
        run_main(main)
    assert capsys.readouterr().err == "error: results/x: permission denied\n"


def test_the_same_words_are_not_written_again(tmp_path):
    path = tmp_path / "folder/page.html"
    for text in ("plain", "an answer with a\rcarriage return\r\n and é"):
        write_text(path, text)
        assert path.read_bytes() == text.encode()
        before = path.stat()
        write_text(path, text)
        assert (path.stat().st_mtime_ns, path.stat().st_ino) == (before.st_mtime_ns, before.st_ino)
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
