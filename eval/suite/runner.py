"""Runs every (checkpoint, harness) as a worker process, two at a time, until each task has a result.

A worker that dies (out of memory, killed) is started again at the task it died in; a second death there marks that
task failed and the next worker goes on behind it. Finished tasks are skipped while their inputs stay the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import torch
from rich.console import Console

from eval.suite.files import read_json, write_json
from eval.suite.job import Job, Task
from eval.suite.status import Status
from modeling_aligned_llava.build_once import exclusive_lock


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


def only_writer(run: Path) -> AbstractContextManager[None]:
    """Hold the logs of a run for this process.

    Raises:
        UserError: another evaluation holds them.
    """
    return exclusive_lock(run / "logs", f"another evaluation works in {run}; wait for it or end it")


def places(jobs: int | None, device: str) -> list[str | None]:
    """Where workers run side by side: GPUs by index, each given out in turn, or None for the CPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return [None] * (jobs or 2)
    gpus = torch.cuda.device_count()
    return [str(index % gpus) for index in range(jobs or gpus)]


def spread(jobs: list[Job], places: list[str | None]) -> list[Job]:
    """On GPUs, jobs of one stock task each, the longest first, where there are fewer jobs than GPUs.

    Not on a CPU: every worker spends ten seconds of it on reading its harness. What shares an answer log stays
    together: a log has one writer.
    """
    if None in places or len(jobs) >= len(places):
        return jobs
    single = [
        replace(job, tasks=[task for task in job.tasks if task.stock == stock])
        for job in jobs
        for stock in dict.fromkeys(task.stock for task in job.tasks)
    ]
    return sorted(single, key=lambda job: -sum(task.rows for task in job.tasks))


class Runner:
    """Runs jobs on `places`, each given to one worker at a time. `run` returns whether every task ended well."""

    def __init__(self, logs: Path, places: list[str | None], console: Console) -> None:
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self.places = places
        self.free: SimpleQueue[str | None] = SimpleQueue()
        for place in places:
            self.free.put(place)
        self.console = console
        self.failures: list[str] = []

    def run(self, jobs: list[Job]) -> bool:
        finished = {(job.name, task.key) for job in jobs for task in job.tasks if is_finished(job, task)}
        left = [
            replace(job, tasks=[task for task in job.tasks if (job.name, task.key) not in finished]) for job in jobs
        ]
        with Status(jobs, finished, self.console) as self.status, ThreadPoolExecutor(len(self.places)) as pool:
            list(pool.map(self.run_job, spread([job for job in left if job.tasks], self.places)))
        return not self.failures

    def run_job(self, job: Job) -> None:
        """All tasks of a job, over as many workers as it takes."""
        place = self.free.get()
        tasks = list(job.tasks)
        deaths = 0

        def close(task: Task, reason: str | None) -> None:
            nonlocal deaths
            tasks.remove(task)
            deaths = 0
            if reason is not None:
                self.failures.append(f"{job.name} {task.key}")
            self.status.end(job, task, reason)

        while tasks:
            process = self.start(replace(job, tasks=tasks), place)
            for event in self.events(process):
                task = tasks[0]  # a worker takes them in order
                if event["event"] == "start":
                    self.status.begin(job, task)
                elif event["event"] == "progress":
                    self.status.advance(job, task, event["rows"])
                else:
                    close(task, None if event["status"] == "ok" else event["reason"])
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
                close(task, reason)
        self.free.put(place)

    def log(self, job: Job) -> Path:
        return self.logs / f"{job.name}.{job.harness}.log"

    def start(self, job: Job, place: str | None) -> subprocess.Popen[str]:
        """A worker that lives no longer than this process: it watches its standard input, held open here."""
        with self.log(job).open("a", encoding="utf-8") as log:
            return subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "eval.suite.worker", job.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=worker_environment(job) | ({} if place is None else {"CUDA_VISIBLE_DEVICES": place}),
            )

    @staticmethod
    def events(process: subprocess.Popen[str]) -> Iterator[dict]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                yield json.loads(line)


def describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
