"""The live table of a study: running cells, the latest results, and a bar with ETA."""

import time

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from eval.study.grid import Cell, Study
from eval.suite.runner import Runner
from eval.suite.training import STAGES


SHOWN = 12  # finished cells


class CellTable:
    """Shows a live table and bar or, if the console is not a terminal, a line per finished cell. A context manager.

    Args:
        left: the cells to run.
        costs: the duration of each, in any unit.
    """

    def __init__(self, study: Study, left: list[Cell], costs: dict[str, float], console: Console):
        self.study, self.left, self.costs, self.console = study, left, costs, console
        self.running: dict[str, tuple[Cell, Runner, float]] = {}
        self.finished: dict[str, tuple[float, float]] = {}  # loss and seconds
        self.started = time.monotonic()
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
        for name, (cell, runner, start) in list(self.running.items()):
            share = _share(cell, runner)
            done += share * self.costs[name]
            table.add_row(name, f"{share:.0%}", "", f"{(time.monotonic() - start) / 60:.1f}")
        self.bar.update(self.all, completed=done, cells=self._count())
        return Group(table, self.bar)

    def _count(self) -> str:
        return f"{len(self.finished)} of {len(self.left)} cells"

    def begin(self, cell: Cell, runner: Runner) -> None:
        self.running[cell.name] = cell, runner, time.monotonic()

    def end(self, cell: Cell, loss: float) -> None:
        *_, start = self.running.pop(cell.name)
        self.finished[cell.name] = loss, time.monotonic() - start
        if not self.console.is_terminal:
            done = sum(self.costs[name] for name in self.finished)
            left = (sum(self.costs.values()) / done - 1) * (time.monotonic() - self.started) / 60
            text = f"{cell.name}: held-out loss {loss:.4f}; {self._count()}, {left:.0f} min left"
            self.console.print(text, highlight=False, soft_wrap=True)


def _share(cell: Cell, runner: Runner) -> float:
    """How much of a cell is done; of one that is only trained, its stages are all."""
    whole = 1.0 if cell.arm.evaluated else sum(STAGES[stage][1] for stage in cell.arm.stages)
    return runner.status.share / whole
