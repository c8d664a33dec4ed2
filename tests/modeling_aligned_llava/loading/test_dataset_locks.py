"""`datasets` locks folders with long paths, and all processes agree on the name of the lock."""

import multiprocessing

import pytest
from datasets.utils._filelock import FileLock
from filelock import Timeout

from modeling_aligned_llava.loading.dataset_locks import repair_dataset_locks


def refused(path):
    try:
        FileLock(path).acquire(timeout=0).release()
    except Timeout:
        return True
    return False


@pytest.mark.parametrize("name", ["short.lock", "ö" * 200 + ".lock", "a long name " * 40 + ".lock"])
def test_one_process_holds_a_lock(tmp_path, name):
    repair_dataset_locks()
    with FileLock(str(tmp_path / name)), multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(refused, (str(tmp_path / name),))
    (lock,) = tmp_path.iterdir()
    assert (lock.name == name) == (name == "short.lock")
    assert FileLock.hash_filename_if_too_long(str(tmp_path / name)) == str(lock)


def test_the_name_is_the_same_in_every_process(tmp_path):
    repair_dataset_locks()
    long = FileLock.hash_filename_if_too_long(str(tmp_path / ("ö" * 200)))
    assert long == f"{tmp_path}/f4966f2104fc8f93ca0243f306417a78f561aecef201aa1d44494f28e0f3ce39.lock"
