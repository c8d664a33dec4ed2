"""The live table of a study: running cells, the latest results, and a bar with ETA."""

import time
from threading import Lock

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from eval.plan.job import Job
from eval.plan.models import STAGES
from eval.run.status import Status
from research.study.grid import Cell, Study


SHOWN = 12  # finished cells


class CellTable:
    """Shows a live table and bar or, if the console is not a terminal, a line per finished cell. A context manager.

    Args:
        left: the cells to run.
        costs: the duration of each, in any unit.
        jobs: how evaluated ones are evaluated.
    """

    def __init__(
        self, study: Study, left: list[Cell], costs: dict[str, float], jobs: dict[str, list[Job]], console: Console
    ):
        self.study, self.left, self.costs, self.jobs, self.console = study, left, costs, jobs, console
        self.cells = {cell.name: cell for cell in left}
        self.running: dict[str, tuple[Status, float]] = {}
        self.finished: dict[str, tuple[float, float]] = {}  # loss and seconds
        self.started, self.lock = time.monotonic(), Lock()
        self.bar = Progress(
            TextColumn(study.name),
            BarColumn(),
            TextColumn("{task.fields[cells]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            speed_estimate_period=24 * 3600,  # cells take minutes
        )
        self.all = self.bar.add_task(study.name, total=sum(costs.values()), cells=self._count())
        self.live = Live(self, console=console, refresh_per_second=1)

    def __enter__(self) -> "CellTable":
        if self.console.is_terminal:
            self.live.start()
        else:
            self.console.print(f"{self.study.name}: {len(self.left)} of {len(self.study.cells)} cells to run")
        return self

    def __exit__(self, *_: object) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def __rich__(self) -> RenderableType:
        table = Table("cell", "state", "held-out loss", "minutes")
        for name, (loss, seconds) in list(self.finished.items())[-SHOWN:]:
            table.add_row(name, "[green]done[/green]", f"{loss:.4f}", f"{seconds / 60:.1f}")
        done = sum(self.costs[name] for name in self.finished)
        for name, (status, start) in list(self.running.items()):
            share = _share(self.cells[name], status)
            done += share * self.costs[name]
            table.add_row(name, f"{share:.0%}", "", f"{(time.monotonic() - start) / 60:.1f}")
        self.bar.update(self.all, completed=done, cells=self._count())
        return Group(table, self.bar)

    def _count(self) -> str:
        return f"{len(self.finished)} of {len(self.left)} cells"

    def begin(self, name: str) -> Status:
        """A cell is begun; returns what its trainings and evaluations tell how far they are."""
        status = Status(self.jobs.get(name, []), set(), Console(quiet=True), [name])
        self.running[name] = status, time.monotonic()
        return status

    def fail(self, name: str, reason: str) -> None:
        """A cell failed."""
        self.running.pop(name, None)
        self.console.print(f"[red]{name} failed:[/red]", Text(reason), soft_wrap=True)

    def end(self, name: str, loss: float) -> None:
        """A cell is recorded."""
        with self.lock:
            _, start = self.running.pop(name)
            self.finished[name] = loss, time.monotonic() - start
            done = sum(self.costs[name] for name in self.finished)
        if not self.console.is_terminal:
            left = (sum(self.costs.values()) / done - 1) * (time.monotonic() - self.started) / 60
            text = f"{name}: held-out loss {loss:.4f}; {self._count()}, {left:.0f} min left"
            self.console.print(text, highlight=False, soft_wrap=True)


def _share(cell: Cell, status: Status) -> float:
    """How much of a cell is done; of one that is only trained, its stages are all."""
    whole = 1.0 if cell.arm.evaluated else sum(STAGES[stage][1] for stage in cell.arm.stages)
    return status.share / whole
