"""A signal while a program imports its packages ends it with one line; one while it exits is too late."""

import signal
import subprocess
import sys
import time

import pytest

from tests import REPOSITORY
from tests.together import catches


FILES = [file for room in ("eval", "train", "tinyworld") for file in (REPOSITORY / room).rglob("*.py")]
PROGRAMS = [file for file in FILES if '__name__ == "__main__"' in file.read_text("utf-8")]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("file", PROGRAMS, ids=lambda file: str(file.relative_to(REPOSITORY)))
def test_a_signal_while_packages_are_imported_is_told_in_one_line(file, number):
    module = ".".join(file.relative_to(REPOSITORY).with_suffix("").parts).removesuffix(".__main__")
    command = [sys.executable, "-m", module]
    process = subprocess.Popen(  # noqa: S603
        command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    while not catches(process.pid, signal.SIGTERM):
        assert process.poll() is None
        time.sleep(0.005)
    process.send_signal(number)
    out, said = process.communicate(timeout=60)
    assert process.returncode == 128 + number and out == ""
    assert said == f"error: stopped by {number.name}; the same command starts again or continues\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_python_exits_is_too_late(number):
    code = (
        "import os, sys; sys.argv[0] = '-m'; import eval\n"
        "class Late:\n"
        f"    def __del__(self, kill=os.kill, process=os.getpid()): kill(process, {number.value})\n"
        "late = Late()  # deleted when Python has dropped the handlers\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, b"")


def test_every_program_lets_a_later_signal_clean_up():
    assert len(PROGRAMS) > 15
    assert [file for file in PROGRAMS if "run_main(" not in file.read_text("utf-8")] == []


@pytest.mark.parametrize("package", ["eval", "train", "tinyworld"])
def test_other_programs_that_import_a_package_keep_their_handlers(package):
    code = f"import signal; before = signal.getsignal(2), signal.getsignal(15); import {package}; "
    code += "assert before == (signal.getsignal(2), signal.getsignal(15))"
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True)  # noqa: S603
