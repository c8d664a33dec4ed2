"""A worker process: one checkpoint in one harness, one guarded call per task (`python -m eval.run.worker JOB`).

A failing task does not affect the others. Events go to standard output as JSON lines; whatever the harness prints goes
to standard error, a log file. When the process that started it dies, so does the worker: no orphan writes results.
"""

import gc
import json
import os
import shutil
import sys
import tempfile
import threading
import time
import traceback
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import yaml

from eval.data.benchmarks import BY_KEY
from eval.options import TRANSFORMERS
from eval.plan.job import Job, Task
from modeling_aligned_llava.loading.files import lock_for, write_json


def die_with_the_parent() -> None:
    """Exit when standard input, held open by the parent, ends: nobody is waiting for the results any more."""

    def wait() -> None:
        while os.read(0, 1):  # not sys.stdin: its lock would be held at interpreter exit
            pass
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def take_events_stream() -> TextIO:
    """Return standard output as it is now, and send everything else that writes to it to standard error."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    return events


def enter_workspace(root: str, folder: Path) -> None:
    """Change to a folder that has `org/name` like the data root, so that stock task definitions run unchanged.

    It is a new folder with links into the root, because some scorers write to the working directory.
    """
    folder.mkdir(parents=True)
    for organisation in {benchmark.folder.split("/")[0] for benchmark in BY_KEY.values()}:
        (folder / organisation).symlink_to(Path(root) / organisation)
    os.chdir(folder)


def read_cards_fast() -> None:
    """`datasets` parses a folder's card once a configuration, 57 times for MMLU; libyaml is ten times faster."""
    yaml.SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # type: ignore[misc]  # mypy takes classes for final


def describe(error: BaseException) -> str:
    """One line for a table cell: the innermost cause (scorers are wrapped in retries), its first line."""
    attempt = getattr(error, "last_attempt", None)
    if attempt is not None and attempt.failed:
        return describe(attempt.exception())
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:400]}" if lines else type(error).__name__


class Worker:
    """Runs the tasks of a job one by one and reports each."""

    def __init__(self, job: Job, events: TextIO) -> None:
        self.job = job
        self.events = events
        self.harness: Any = None
        self.server: Any = None

    def report(self, **event: Any) -> None:
        self.events.write(json.dumps(event) + "\n")

    def run(self) -> None:
        with ExitStack() as stack:
            for task in self.job.tasks:
                self.report(event="start", task=task.key)
                try:
                    if self.harness is None:
                        self.harness = self.load(stack)
                        gc.freeze()  # the harness collects garbage twice a task; what stays is not looked through
                    with lock_for(Path(self.job.answer_log(task.stock))):  # a worker on a lost machine may write
                        result = self.evaluate(task)
                except Exception as error:
                    traceback.print_exc()
                    self.finish(task, {"status": "failed", "reason": describe(error)})
                else:
                    self.finish(task, {"status": "ok", "reason": None} | result)

    def load(self, stack: ExitStack) -> Any:
        from eval.run.harnesses import LmEval, LmmsEval
        from eval.run.vllm_server import vllm_server
        from modeling_aligned_llava.loading.dataset_locks import repair_dataset_locks

        repair_dataset_locks()
        job = self.job
        if job.engine != TRANSFORMERS and self.server is None:
            serving = vllm_server(
                job.engine, job.checkpoint, job.dtype, job.batch_size, job.shared_prefix, job.trust_remote_code
            )
            self.server = stack.enter_context(serving)
        return {"lmms-eval": LmmsEval, "lm-eval": LmEval}[job.harness](job, self.server)

    def evaluate(self, task: Task) -> dict[str, Any]:
        from eval.score.items import read_result
        from eval.score.results import made_by

        benchmark = BY_KEY[task.key]
        folder = self.job.folder(task.key)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start = time.perf_counter()
        images = self.harness.evaluate(
            benchmark, folder, lambda rows: self.report(event="progress", task=task.key, rows=rows)
        )
        seconds = time.perf_counter() - start
        root, trial = Path(self.job.root), self.job.limit is not None
        result = asdict(read_result(benchmark, folder, task.rows, images, root, trial))
        engine = {} if self.server is None else {"engine": self.server.engine}
        return result | {"seconds": seconds, "made_by": made_by() | engine}

    def finish(self, task: Task, result: dict[str, Any]) -> None:
        write_json(self.job.result(task.key), {"inputs": self.job.inputs(task)} | result, indent=None)
        self.report(event="end", task=task.key, status=result["status"], reason=result["reason"])


def main() -> None:
    die_with_the_parent()
    from modeling_aligned_llava.errors import run_main  # imports torch, which takes seconds

    run_main(evaluate)


def evaluate() -> None:
    job = Job.from_json(sys.argv[1])
    events = take_events_stream()
    read_cards_fast()
    with tempfile.TemporaryDirectory(prefix="eval-") as folder:
        enter_workspace(job.root, Path(folder) / "workspace")
        Worker(job, events).run()
        os.chdir("/")


if __name__ == "__main__":
    main()
