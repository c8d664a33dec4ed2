"""What a trial says about the whole."""

import io

from rich.console import Console

from eval.suite.estimate import estimated_seconds, show_estimate
from eval.suite.worker import peak_memory


def trial(seconds, rows, memory):
    return {"status": "ok", "seconds": seconds, "rows": rows, "peak_memory": memory}


def test_hours_grow_with_the_rows_and_shrink_with_the_processes():
    results = {
        "one": {"pope": trial(8.0, 8, 2e9), "mmlu": trial(57.0, 456, 3e9)},
        "text": {"pope": {"status": "not run"}, "mmlu": trial(114.0, 456, 1e9)},
    }
    assert estimated_seconds(results["one"]["pope"], 7200) == 7200
    output = io.StringIO()
    show_estimate(results, {"pope": 7200, "mmlu": 28800}, 2, Console(file=output, width=120))
    lines = [line.split() for line in output.getvalue().replace("│", " ").splitlines()]
    assert ["one", "2.00", "1.00", "3.00", "3.0", "GB"] in lines
    assert ["text", "-", "2.00", "2.00", "1.0", "GB"] in lines
    assert "2.50 hours on 2 processes" in output.getvalue()


def test_the_memory_of_a_process_is_known():
    block = bytearray(10**8)
    assert len(block) < peak_memory("cpu") < 10**12
