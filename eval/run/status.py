"""What is shown while steps run: a live table of checkpoints and their tasks above a bar with rate and ETA."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import RLock

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from eval.data.benchmarks import BY_KEY
from eval.plan.job import Job
from eval.plan.models import SPANS
from eval.run.processes import SILENCE


TRAINING = "training"  # the column before the benchmarks
TRAINING_ROWS = 3  # training a model takes as long as evaluating it this many times (tinyworld on a CPU)


class Status:
    """Shows a live table and bar or, if the console is not a terminal, a line per finished task and one every half
    minute. A context manager, told by the steps in their threads.

    Args:
        jobs: all jobs of the run.
        finished: (checkpoint, benchmark) pairs that an earlier run finished.
        trained: checkpoints to be trained first.
    """

    def __init__(
        self, jobs: list[Job], finished: set[tuple[str, str]], console: Console, trained: Sequence[str] = ()
    ) -> None:
        self.console = console
        self.lock = RLock()
        self.failures: list[str] = []
        self.running: dict[str, str] = {}  # checkpoint -> what it is doing
        self.spoke = time.monotonic()
        tasks: dict[tuple[str, str], float] = {(job.name, task.key): task.rows for job in jobs for task in job.tasks}
        self.has_training = bool(trained)
        of_model = {name: sum(rows for (other, _), rows in tasks.items() if other == name) for name in trained}
        self.rows = {(name, TRAINING): TRAINING_ROWS * rows or 1.0 for name, rows in of_model.items()} | tasks
        self.done = {pair: self.rows[pair] if pair in finished else 0.0 for pair in self.rows}
        self.words = dict.fromkeys(finished, "[green]done[/green]")
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn() if trained else MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[left]}"),
        )
        total, title = sum(self.rows.values()), "everything" if trained else "all rows"
        self.all: TaskID = self.bar.add_task(
            title,
            total=total,
            completed=sum(self.done.values()),  # type: ignore[arg-type]  # rich says int, and counts in floats
            rate="",
            left="",
        )
        self.begun, self.share_before = self.spoke, self.share
        self.told: set[tuple[str, str]] = set()  # (checkpoint, stage) that said how far they are
        self.live = Live(self, console=console, refresh_per_second=2, transient=False)

    @property
    def share(self) -> float:
        """How much of everything is done, 0 to 1."""
        return sum(self.done.values()) / sum(self.rows.values()) if self.rows else 0.0

    @property
    def left(self) -> str:
        """The time left at the pace since the start, which the bar's own estimate, of its last updates, is not."""
        gained = self.share - self.share_before
        if gained < 1e-9:  # sums of floats
            return ""
        minutes = (1 - self.share) * (time.monotonic() - self.begun) / gained / 60
        return f"about {minutes:.0f} min left" if minutes > 1 else ""

    def __enter__(self) -> "Status":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()
        elif failure is None:
            self.console.print(self.bar)

    def __rich__(self) -> RenderableType:
        titles = {TRAINING: TRAINING} | {key: benchmark.title for key, benchmark in BY_KEY.items()}
        keys = [key for key in titles if any(pair[1] == key for pair in self.rows)]
        table = Table("", *(titles[key] for key in keys))
        for name in dict.fromkeys(pair[0] for pair in self.rows):
            table.add_row(name, *(self._cell(name, key) for key in keys))
        return Group(table, self.bar)

    def _cell(self, name: str, key: str) -> str:
        if (name, key) not in self.rows:
            return "[dim]-[/dim]"
        share = self.done[name, key] / self.rows[name, key]
        return self.words.get((name, key), f"{share:.0%}" if share else "[dim]waiting[/dim]")

    def begin(self, name: str, key: str) -> None:
        """A worker starts or restarts the task."""
        with self._changing():
            self.running[name] = key
            self._set(name, key, 0.0)

    def advance(self, name: str, key: str, rows: float) -> None:
        """The worker has answered further rows of the task."""
        with self._changing():
            self._set(name, key, min(self.rows[name, key], self.done[name, key] + rows))
            self.running[name] = f"{key} {self.done[name, key]:.0f} of {self.rows[name, key]:.0f}"

    def end(self, name: str, key: str, reason: str | None = None) -> None:
        """The task is done, or failed because of `reason`."""
        with self._changing():
            if reason is None:
                self._close(name, key, "[green]done[/green]")
                self._line(f"{name} {key}: done")
            else:
                self._close(name, key, "[red]failed[/red]")
                self.fail(f"{name} {key}", reason)

    def fail(self, step: str, reason: str) -> None:
        """A task or step failed."""
        with self.lock:
            self.failures.append(step)
            self.running = {name: doing for name, doing in self.running.items() if not step.startswith(f"{name} ")}
            self.console.print(f"[red]{step} failed:[/red]", Text(reason), soft_wrap=True)

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def train(self, name: str, stage: str, share: float, seconds_left: float | None) -> None:
        """`share` of a training stage of a checkpoint is done."""
        left = "" if seconds_left is None else f"{seconds_left:.0f} s left"
        begin, length = SPANS[stage]
        with self._changing():
            self.words[name, TRAINING] = f"{begin + length * share:.0%}[dim] {stage} {left}[/dim]"
            self.running[name] = f"{stage} {left}".strip()
            rows = (begin + length * share) * self.rows[name, TRAINING]
            if (name, stage) not in self.told:  # what it says first, it had before this run
                self.told.add((name, stage))
                self.share_before += (rows - self.done[name, TRAINING]) / sum(self.rows.values())
            self._set(name, TRAINING, rows)

    def trained(self, name: str, stage: str) -> None:
        """A stage of the training is done."""
        with self._changing():
            self.train(name, stage, 1.0, None)
            if sum(SPANS[stage]) == 1:
                self._close(name, TRAINING, "[green]done[/green]")
            self._line(f"{name} {stage}: done")

    def tick(self) -> None:
        """Called while nothing happens."""
        with self._changing():
            pass

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """One step at a time; afterwards, a line of what runs if there was none for long."""
        with self.lock:
            yield
            if not self.console.is_terminal and time.monotonic() - self.spoke >= SILENCE:
                now = ", ".join(f"{name} {activity}" for name, activity in self.running.items())
                self._line(", ".join(filter(None, (f"{self.share:.0%}", self.left))) + f": {now}")

    def _close(self, name: str, key: str, words: str) -> None:
        self.words[name, key] = words
        self.running.pop(name, None)
        self._set(name, key, self.rows[name, key])

    def _line(self, text: str) -> None:
        if not self.console.is_terminal:
            self.spoke = time.monotonic()
            self.console.print(text, highlight=False, soft_wrap=True)

    def _set(self, name: str, key: str, rows: float) -> None:
        self.done[name, key] = rows
        speed = None if self.has_training else self.bar.tasks[0].speed
        rate = f"{speed:.1f} rows/s" if speed else ""
        self.bar.update(self.all, completed=sum(self.done.values()), rate=rate, left=self.left)
