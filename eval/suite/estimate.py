"""`--estimate`: hours and memory of an evaluation, extrapolated from a trial on the first rows of each task.

A trial shares fewer images and prefixes among its rows than the whole benchmark does, so the time is rather too long.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from eval.data.benchmarks import BY_KEY
from eval.scoring.scores import Results
from eval.suite.evaluation import is_finished
from eval.suite.job import Job
from modeling_aligned_llava.loading.files import read_json


TRIAL = 8  # rows per task


def forget_untimed(jobs: Sequence[Job]) -> None:
    """Remove the answers of tasks that would not take their whole time again, and their results: an evaluation that
    was stopped, or is scored again, finds its answers in the log.
    """
    for job in jobs:
        for task in job.tasks:
            if not is_finished(job, task) or read_json(job.result(task.key))["resumed"]:
                job.result(task.key).unlink(missing_ok=True)
                Path(job.answer_log(task.stock)).unlink(missing_ok=True)


def estimated_seconds(result: dict, rows: int) -> float:
    """The time that `rows` rows take, from a trial's result."""
    return result["seconds"] * rows / result["rows"]


def show_estimate(results: Mapping[str, Results], rows: Mapping[str, int], workers: int, console: Console) -> None:
    """Print hours per model and task, the highest memory of a process, hours in all, and what is left out of them.

    Args:
        results: model name -> results of the trial.
        rows: benchmark -> rows of the whole benchmark.
        workers: processes side by side.
    """
    keys = [key for key in BY_KEY if key in rows]
    table = Table("", *(BY_KEY[key].title for key in keys), "hours", "memory", title="estimated hours")
    total, unknown = 0.0, []
    for name, own in results.items():
        done = {key: own[key] for key in keys if own.get(key, {}).get("status") == "ok" and not own[key]["resumed"]}
        hours = {key: estimated_seconds(result, rows[key]) / 3600 for key, result in done.items()}
        total += sum(hours.values())
        tried = [key for key in keys if own.get(key, {"status": "not run"})["status"] != "not run"]
        unknown += [f"{name} {BY_KEY[key].title}" for key in tried if key not in done]
        memory = max((result["peak_memory"] for result in done.values()), default=0) / 1e9
        cells = (f"{hours[key]:.2f}" if key in hours else "-" for key in keys)
        table.add_row(name, *cells, f"{sum(hours.values()):.2f}", f"{memory:.1f} GB")
    console.print(table)
    left_out = ", ".join(["start-up", *unknown])
    console.print(f"{total / workers:.2f} hours on {workers} processes side by side, without {left_out}")
