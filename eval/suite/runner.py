"""Runs every (checkpoint, harness) as a worker process until each task has a result.

A checkpoint is evaluated as soon as it is trained, while others are still being trained. A worker that dies (out of
memory, killed) is restarted at the task it died in; a second death there marks the task as failed, and the next worker
continues after it. Finished tasks are skipped as long as their inputs stay the same.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from eval.suite.job import Job, Task
from eval.suite.schedule import Children, Place, Step, run_steps
from eval.suite.status import TRAINING_ROWS, Status
from eval.suite.training import Training
from modeling_aligned_llava.loading.build_once import exclusive_lock
from modeling_aligned_llava.loading.files import read_json, write_json
from modeling_aligned_llava.loading.fingerprint import hash_checkpoint


# Variables of the user's shell that would make a harness read other data or use the network.
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
    """Lock the logs of a run for this process.

    Raises:
        UserError: another evaluation has locked them.
    """
    return exclusive_lock(run / "logs", f"another evaluation is running in {run}; wait for it or stop it")


def places(jobs: int | None, device: str) -> list[Place]:
    """Where workers run in parallel: GPUs as `CUDA_VISIBLE_DEVICES` names them, in turn, or None for the CPU."""
    if device == "cpu" or not torch.cuda.is_available():
        return [None] * (jobs or 2)
    gpus = torch.cuda.device_count()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")  # indices, UUIDs or MIG names; torch counts these alone
    names = visible.split(",") if visible else [str(index) for index in range(gpus)]
    return [names[index % gpus].strip() for index in range(jobs or gpus)]


def spread(jobs: list[Job], places: Sequence[Place]) -> list[Job]:
    """If there are fewer jobs than GPUs, split them into jobs of one stock task each, the longest first.

    Not on a CPU, where every worker spends ten seconds on importing its harness. Tasks that share an answer log stay
    together, because a log has one writer.
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
    """Runs jobs on `places`, one process at a time on each. `run` returns whether every task succeeded."""

    def __init__(
        self, logs: Path, places: Sequence[Place], console: Console, children: Children | None = None
    ) -> None:
        self.logs = logs
        logs.mkdir(parents=True, exist_ok=True)
        self.places = places
        self.console = console
        self.children = children or Children()
        self.status = Status([], set(), console)
        self.failures: list[str] = []

    def run(self, jobs: list[Job], trainings: Sequence[Training] = ()) -> bool:
        """Run the trainings, and evaluate each checkpoint as soon as it is trained.

        Raises:
            UserError: a training failed; all other processes have been stopped.
        """
        trained = list(dict.fromkeys(training.name for training in trainings))
        known = [job for job in jobs if job.name not in trained]
        finished = {(job.name, task.key) for job in known for task in job.tasks if is_finished(job, task)}
        left = [
            replace(job, tasks=[task for task in job.tasks if (job.name, task.key) not in finished]) for job in jobs
        ]
        left = spread([job for job in left if job.tasks], self.places)
        steps: list[Step] = []
        last: dict[str, str] = {}  # checkpoint -> its latest step, which the next one waits for

        def add(name: str, model: str, work: Callable[[Place], None], cost: float) -> None:
            steps.append(Step(name, work, cost, (last[model],) if model in last else ()))

        for training in trainings:
            rows = sum(task.rows for job in left if job.name == training.name for task in job.tasks)
            cost = TRAINING_ROWS * rows * training.share
            add(training.step, training.name, partial(self.train, training), cost)
            last[training.name] = training.step
        for number, job in enumerate(left):
            cost = sum(task.rows for task in job.tasks)
            add(f"{job.name} job {number}", job.name, partial(self.evaluate, job), cost)
        with Status(jobs, finished, self.console, trained) as self.status:
            run_steps(steps, self.places, self.children)
        return not self.failures

    def run_in_turn(self, jobs: list[Job], trainings: Sequence[Training], place: Place) -> bool:
        """Run the trainings and then the jobs of one checkpoint on one place, without the live table.

        Raises:
            UserError: a training failed.
        """
        self.status = Status(jobs, set(), self.console, [training.name for training in trainings[:1]])
        for training in trainings:
            self.train(training, place)
        for job in jobs:
            self.evaluate(job, place)
        return not self.failures

    def train(self, training: Training, place: Place) -> None:
        training.run(self.children, environment_of(place), partial(self.status.train, training.name))
        self.status.trained(training.name, training.stage)

    def evaluate(self, job: Job, place: Place) -> None:
        """Run the tasks of a job that have no result yet, with as many workers as it takes."""
        if not job.weights:
            job = replace(job, weights=hash_checkpoint(job.checkpoint))
        tasks = []
        for task in job.tasks:
            if is_finished(job, task):
                self.status.found(job, task)
            else:
                tasks.append(task)
        self.explain(job, tasks)
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
            code = self.children.wait(process)
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

    def explain(self, job: Job, tasks: list[Task]) -> None:
        """Say which tasks are done again although they have a result, and what has changed."""
        again: dict[str, list[str]] = {}
        for task in tasks:
            result = read_json(job.result(task.key))
            if result is not None and (changes := job.changes(task, result["inputs"])):
                again.setdefault(", ".join(changes), []).append(task.key)
        for changed, keys in again.items():
            self.console.print(f"{job.name}: {', '.join(keys)} again ({changed})", highlight=False, soft_wrap=True)

    def log(self, job: Job) -> Path:
        return self.logs / f"{job.name}.{job.harness}.log"

    def start(self, job: Job, place: Place) -> subprocess.Popen[str]:
        """Start a worker. It watches its standard input, which is held open here, and so dies with this process."""
        with self.log(job).open("a", encoding="utf-8") as log:
            return self.children.start(
                [sys.executable, "-m", "eval.suite.worker", job.to_json()],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=worker_environment(job) | environment_of(place),
            )

    @staticmethod
    def events(process: subprocess.Popen[str]) -> Iterator[dict]:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                yield json.loads(line)


def environment_of(place: Place) -> dict[str, str]:
    """The variables that keep a process on its place."""
    return {} if place is None else {"CUDA_VISIBLE_DEVICES": place}


def describe_exit(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"
