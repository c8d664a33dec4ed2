"""What the runner shows while it works: a live table of (checkpoint, benchmark) over a bar with rate and ETA."""

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

from eval.data.benchmarks import BY_KEY
from eval.suite.job import Job, Task


class Status:
    """Live table and bar; on a console that is no terminal, one line a finished task. Use it as a context manager.

    Args:
        jobs: all jobs of the run.
        finished: (checkpoint, benchmark) that an earlier run finished.
    """

    def __init__(self, jobs: list[Job], finished: set[tuple[str, str]], console: Console) -> None:
        self.console = console
        self.rows = {(job.name, task.key): task.rows for job in jobs for task in job.tasks}
        self.done = {pair: self.rows[pair] if pair in finished else 0.0 for pair in self.rows}
        self.words = dict.fromkeys(finished, "[green]done[/green]")
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        total = sum(self.rows.values())
        self.all: TaskID = self.bar.add_task("all rows", total=total, completed=sum(self.done.values()), rate="")
        self.live = Live(self, console=console, refresh_per_second=2, transient=False)

    def __enter__(self) -> "Status":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()
        else:
            self.console.print(self.bar)

    def __rich__(self) -> RenderableType:
        keys = [key for key in BY_KEY if any(pair[1] == key for pair in self.rows)]
        table = Table("", *(BY_KEY[key].title for key in keys))
        for name in dict.fromkeys(pair[0] for pair in self.rows):
            table.add_row(name, *(self._cell(name, key) for key in keys))
        return Group(table, self.bar)

    def _cell(self, name: str, key: str) -> str:
        if (name, key) not in self.rows:
            return "[dim]-[/dim]"
        share = self.done[name, key] / self.rows[name, key]
        return self.words.get((name, key), f"{share:.0%}" if share else "[dim]waiting[/dim]")

    def begin(self, job: Job, task: Task) -> None:
        """A worker starts the task, for the first time or again."""
        self._set(job, task, 0.0)

    def advance(self, job: Job, task: Task, rows: float) -> None:
        self._set(job, task, min(task.rows, self.done[job.name, task.key] + rows))

    def end(self, job: Job, task: Task, reason: str | None) -> None:
        """The task is done, or failed for `reason`."""
        self.words[job.name, task.key] = "[green]done[/green]" if reason is None else "[red]failed[/red]"
        self._set(job, task, task.rows)
        if reason is not None:
            self.console.print(f"[red]{job.name} {task.key} failed:[/red]", Text(reason))
        elif not self.console.is_terminal:
            self.console.print(f"{job.name} {task.key}: done")

    def _set(self, job: Job, task: Task, rows: float) -> None:
        self.done[job.name, task.key] = rows
        speed = self.bar.tasks[0].speed
        self.bar.update(self.all, completed=sum(self.done.values()), rate=f"{speed:.1f} rows/s" if speed else "")
