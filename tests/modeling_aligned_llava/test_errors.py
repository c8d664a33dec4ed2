"""A user's error ends a program with one line and status 1, wherever it was raised."""

import pytest
from torch.utils.data import DataLoader

from modeling_aligned_llava.errors import UserError, run_main


def broken(rows):
    raise UserError(f"row {rows[0]} is broken")


@pytest.mark.parametrize("workers", [0, 1])
def test_one_line_and_status_one(workers, capsys):
    with pytest.raises(SystemExit) as exit_info:
        run_main(lambda: list(DataLoader([7], num_workers=workers, collate_fn=broken)))
    assert exit_info.value.code == 1
    assert capsys.readouterr().err == "error: row 7 is broken\n"


def test_other_errors_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_main(lambda: 1 / 0)
