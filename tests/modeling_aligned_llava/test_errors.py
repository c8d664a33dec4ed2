"""A user's error ends a program with one line and status 1, wherever it was raised."""

import multiprocessing
import os
import signal
import time

import pytest
from huggingface_hub.errors import HfHubHTTPError
from torch.utils.data import DataLoader

from modeling_aligned_llava.errors import UserError, errors_named, run_main


def broken(rows):
    raise UserError(f"row {rows[0]} is broken")


@pytest.mark.parametrize("workers", [0, 1])
def test_one_line_and_status_one(workers, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_main(lambda: list(DataLoader([7], num_workers=workers, collate_fn=broken)))
    assert exit_info.value.code == 1
    assert capsys.readouterr().err == "error: row 7 is broken\n"


@pytest.mark.parametrize("error", [HfHubHTTPError.__new__(HfHubHTTPError), OSError("a\nb"), ValueError("c")])
def test_an_error_of_a_library_is_one_line_without_keys_of_signed_addresses(error):
    error.args = (f"{error}\nfor url https://host/file?X-Signature=secret",)
    with pytest.raises(UserError) as raised, errors_named("cannot fetch it"):
        raise error
    text = str(raised.value)
    assert text.startswith(f"cannot fetch it: {type(error).__name__}: ") and "\n" not in text
    assert text.endswith("for url https://host/file") and "secret" not in text


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_clean_up_and_are_one_line(number, capsys):
    before, cleaned = signal.getsignal(number), []

    def main():
        try:
            os.kill(os.getpid(), number)
        except Exception:
            pytest.fail("taken for the failure of one item")
        finally:
            os.kill(os.getpid(), number)  # an impatient user
            cleaned.append(True)

    with pytest.raises(SystemExit) as exit_info:
        run_main(main)
    assert exit_info.value.code == 128 + number and cleaned and signal.getsignal(number) == before
    assert capsys.readouterr().err.startswith(f"error: stopped by {number.name}")


def test_a_signal_ends_a_forked_worker_without_a_word(capfd):
    context = multiprocessing.get_context("fork")
    working = context.Event()

    def work():
        working.set()
        for _ in range(600):
            time.sleep(0.1)  # one long sleep would go on if the signal came just before it

    def main():
        worker = context.Process(target=work)
        worker.start()
        assert working.wait(60)  # Python drops a signal that comes while it forks
        os.kill(worker.pid, signal.SIGTERM)
        worker.join(60)
        assert worker.exitcode == 128 + signal.SIGTERM

    run_main(main)
    assert capfd.readouterr() == ("", "")
