"""A killed run leaves no worker that holds its locks and pipes."""

import multiprocessing
import os
import signal
import time

import pytest

from train.data.worker_processes import workers_end_with_us


def test_workers_end_with_a_killed_parent():
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)

    def parent():
        with workers_end_with_us():
            context.Process(target=time.sleep, args=(60,)).start()
        writer.send("started")
        time.sleep(60)

    process = context.Process(target=parent)
    process.start()
    writer.close()
    assert reader.recv() == "started"
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert reader.poll(10)  # the end of the pipe: nobody holds it any more
    with pytest.raises(EOFError):
        reader.recv()
