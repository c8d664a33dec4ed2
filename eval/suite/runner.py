"""Runs every (checkpoint, harness) as a worker process, two at a time, until each task has a result.

A worker that dies (out of memory, killed) is started again at the task it died in; a second death there marks that
task failed and the next worker goes on behind it. Finished tasks are skipped while their inputs stay the same.
"""

import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from eval.suite.files import read_json, write_json
from eval.suite.job import Job, Task
from modeling_aligned_llava.errors import UserError


# Variables of the user's shell that would make a harness read other data or ask the network.
FOREIGN_VARIABLES = (
    "HF_DATASETS_CACHE",
    "HF_HUB_CACHE",
    "LMMS_EVAL_DATASETS_CACHE",
    "LMMS_EVAL_PLUGINS",
    "NUM_IMAGE",
    "OPENAI_API_KEY",
)


def worker_environment(job: Job) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name not in FOREIGN_VARIABLES}
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, [here, environment.get("PYTHONPATH")]))
    return environment | {
        "PYTHONPATH": path,
        "HF_HOME": job.cache,
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def is_finished(job: Job, task: Task) -> bool:
    result = read_json(job.result(task.key))
    return result is not None and result["status"] == "ok" and result["inputs"] == job.inputs(task)


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; the system lets go of it however the process ends.

    Raises:
        UserError: another process holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UserError(f"another evaluation works in {folder.parent}; wait for it or end it") from None
        yield


class Runner:
    """Progress and outcome of all jobs. `run` returns whether every task ended well."""

    def __init__(self, logs: Path, parallel: int, console: Console) -> None:
        self.logs = logs
        self.parallel = parallel
        self.console = console
        self.failures: list[str] = []
        self.lock = threading.Lock()

    def run(self, jobs: list[Job]) -> bool:
        open_jobs = [(job, [task for task in job.tasks if not is_finished(job, task)]) for job in jobs]
        total = sum(task.rows for job in jobs for task in job.tasks)
        left = sum(task.rows for _, tasks in open_jobs for task in tasks)
        columns = (
            TextColumn("{task.description:<32}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self.console) as self.bars:
            self.all_rows = self.bars.add_task("all benchmarks", total=total, completed=total - left)
            with ThreadPoolExecutor(self.parallel) as pool:
                list(pool.map(lambda pair: self.run_job(*pair), [pair for pair in open_jobs if pair[1]]))
        return not self.failures

    def run_job(self, job: Job, tasks: list[Task]) -> None:
        """All open tasks of a job, over as many workers as it takes."""
        bar = self.bars.add_task(f"{job.name} {job.harness}", total=sum(task.rows for task in tasks))
        done = shown = 0.0
        deaths = 0

        def close(task: Task, status: str, reason: str | None) -> None:
            nonlocal tasks, done, shown, deaths
            tasks = [other for other in tasks if other is not task]
            done += task.rows
            shown, deaths = done, 0
            self.bars.update(bar, completed=done)
            self.bars.advance(self.all_rows, task.rows)
            if status == "failed":
                self.failed(job, task, reason)
            elif not self.console.is_terminal:
                self.console.print(f"{job.name} {task.key}: done")

        while tasks:
            process = self.start(replace(job, tasks=tasks))
            for event in self.events(process):
                task = tasks[0]  # a worker takes them in order
                if event["event"] == "start":
                    shown = done
                elif event["event"] == "progress":
                    shown += event["rows"]
                    self.bars.update(bar, completed=shown, description=f"{job.name} {task.key}")
                else:
                    close(task, event["status"], event["reason"])
            code = process.wait()
            if not tasks:
                break
            deaths += 1
            task, cause = tasks[0], describe_exit(code)
            if deaths == 1:
                self.console.print(f"{job.name} {task.key}: the worker died ({cause}), starting another")
            else:
                reason = f"the worker died twice ({cause}), see {self.log(job).name}"
                result = {"inputs": job.inputs(task), "status": "failed", "reason": reason}
                write_json(job.result(task.key), result, indent=None)
                close(task, "failed", reason)
        self.bars.remove_task(bar)

    def log(self, job: Job) -> Path:
        return self.logs / f"{job.name}.{job.harness}.log"

    def start(self, job: Job) -> subprocess.Popen[str]:
        """A worker that lives no longer than this process: it watches its standard input, held open here."""
        with self.log(job).open("a", encoding="utf-8") as log:
            return subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "eval.suite.worker", job.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=worker_environment(job),
            )

    @staticmethod
    def events(process: subprocess.Popen[str]) -> Iterator[dict]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                yield json.loads(line)

    def failed(self, job: Job, task: Task, reason: str | None) -> None:
        with self.lock:
            self.failures.append(f"{job.name} {task.key}")
        self.console.print(f"[red]{job.name} {task.key} failed:[/red]", Text(reason or ""))


def describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
