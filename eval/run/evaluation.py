"""Evaluating one (checkpoint, harness): worker processes until each task has a result.

A worker that dies (out of memory, killed) is restarted at the task it died in; a second death there marks the task as
failed, and the next worker continues after it. Finished tasks are skipped as long as their inputs stay the same.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from eval.plan.job import Job, Task
from eval.run.processes import child, lines
from eval.run.status import Status
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
SHOWN_EVERY = 0.5  # seconds


def evaluate(job: Job, logs: Path, status: Status) -> None:
    """Run the tasks of a job without a result. The result of a failed task says why."""
    if not job.weights:
        job = replace(job, weights=hash_checkpoint(job.checkpoint))
    left = [task for task in job.tasks if not job.is_finished(task)]
    for task in job.tasks:
        if task not in left:
            status.end(job.name, task.key)
    again: dict[str, list[str]] = {}  # what has changed -> tasks that have a result, and are done again because of it
    for task in left:
        result = read_json(job.result(task.key))
        if result is not None and (changes := job.changes(task, result["inputs"])):
            again.setdefault(", ".join(changes), []).append(task.key)
    for changed, keys in again.items():
        status.say(f"{job.name}: {', '.join(keys)} again ({changed})")
    log, deaths = logs / f"{job.name}.{job.harness}.log", 0
    while left:
        before = len(left)
        cause = _work(job, left, log, status)
        if not left:
            return
        task, deaths = left[0], deaths + 1 if len(left) == before else 1
        if deaths == 1:
            status.say(f"{job.name} {task.key}: the worker died ({cause}), starting another")
            continue
        reason = f"the worker died twice ({cause}), see {log.name}"
        result = {"inputs": job.inputs(task), "status": "failed", "reason": reason}
        write_json(job.result(task.key), result, indent=None)
        status.end(job.name, task.key, reason)
        del left[0]
        deaths = 0


def _work(job: Job, left: list[Task], log: Path, status: Status) -> str:
    """Run a worker, which takes the tasks in order and stops when its standard input, held open here, ends.

    Tasks that it ends are removed from `left`.

    Returns:
        How the process ended.
    """
    command = [sys.executable, "-m", "eval.run.worker", replace(job, tasks=list(left)).to_json()]
    rows, shown = 0.0, time.monotonic()
    pipe = subprocess.PIPE
    with (
        log.open("a", encoding="utf-8") as errors,
        child(command, stdin=pipe, stdout=pipe, stderr=errors, env=_environment(job)) as process,
    ):
        for line in lines(process, status.tick):
            event, key = json.loads(line), left[0].key
            if event["event"] == "start":
                status.begin(job.name, key)
            elif event["event"] == "end":
                del left[0]
                rows = 0.0
                status.end(job.name, key, event["reason"])
            else:
                rows += event["rows"]
                if time.monotonic() - shown > SHOWN_EVERY:
                    status.advance(job.name, key, rows)
                    rows, shown = 0.0, time.monotonic()
    code = process.returncode
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def _environment(job: Job) -> dict[str, str]:
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
