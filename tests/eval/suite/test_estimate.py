"""What a trial says about the whole."""

import io
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from eval.suite.estimate import estimated_seconds, forget_untimed, show_estimate
from eval.suite.evaluation import is_finished
from eval.suite.worker import Worker, peak_memory
from modeling_aligned_llava.loading.files import write_json
from tests.eval.suite.test_run import job


def trial(seconds, rows, memory, resumed=False):
    return {"status": "ok", "seconds": seconds, "rows": rows, "peak_memory": memory, "resumed": resumed}


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
    assert "2.50 hours on 2 processes side by side, without start-up\n" in output.getvalue()


def test_a_time_that_was_not_taken_is_not_extrapolated():
    results = {"one": {"pope": trial(8.0, 8, 2e9), "ai2d": trial(0.1, 8, 2e9, resumed=True)}}
    output = io.StringIO()
    show_estimate(results, {"pope": 7200, "ai2d": 7200}, 1, Console(file=output, width=120))
    assert "2.00 hours on 1 processes side by side, without start-up, one AI2D\n" in output.getvalue()


def test_answers_of_an_earlier_start_are_given_again(tmp_path):
    """Benchmarks of one stock task share answers within a start, which shortens the whole evaluation too."""
    whole = replace(job("a", pope=8, ai2d=8, mmstar=8), output=str(tmp_path / "out"), answers=str(tmp_path / "log"))
    for task in whole.tasks:
        Path(whole.answer_log(task.stock)).parent.mkdir(exist_ok=True)
        Path(whole.answer_log(task.stock)).touch()
    pope, ai2d, mmstar = whole.tasks
    write_json(whole.result("pope"), {"inputs": whole.inputs(pope)} | trial(8.0, 8, 1))
    write_json(whole.result("ai2d"), {"inputs": whole.inputs(ai2d)} | trial(0.1, 8, 1, resumed=True))
    write_json(whole.result("mmstar"), {"inputs": whole.inputs(mmstar) | {"dtype": "other"}} | trial(8.0, 8, 1))
    assert Worker(whole, io.StringIO()).resumed == {"pope", "ai2d", "mmstar"}
    forget_untimed([whole])
    assert is_finished(whole, pope) and not is_finished(whole, ai2d) and not is_finished(whole, mmstar)
    assert Worker(whole, io.StringIO()).resumed == {"pope"}


def test_the_memory_of_a_process_is_known():
    block = bytearray(10**8)
    assert len(block) < peak_memory("cpu") < 10**12
