"""What a run shows and keeps: a progress bar with rate and ETA, and one JSON line per logged step."""

import json
import math
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback

from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.loading.build_once import replacing
from train.stage_folder import say


class JsonLines(TrainerCallback):
    """Appends what is logged to a file: training loss, and held-out loss where there is one."""

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            drop_lines_behind(self.path, state.global_step)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if state.is_world_process_zero and ("loss" in logs or "eval_loss" in logs):
            append_line(self.path, {"step": state.global_step, **logs})


def append_line(path: Path, record: dict[str, Any]) -> None:
    """Add one JSON line."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


def drop_lines_behind(path: Path, step: int) -> None:
    """A resumed run drops the lines after its checkpoint before it writes them again."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    kept = [line for line in lines if _step(line) <= step]
    with replacing(path) as unfinished:
        unfinished.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:  # torn by a kill
        return math.inf


class StopOnBrokenLoss(TrainerCallback):
    """Ends the run with one line when the loss is no longer a number."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if not math.isfinite(logs.get("loss", 0.0)):
            raise UserError(f"the loss is {logs['loss']} at step {state.global_step}: lower the learning rate")


class ProgressBar(TrainerCallback):
    """Steps, rate, ETA and loss; where there is no terminal, a line at every log."""

    def __init__(self, title: str):
        self.title = title
        self.console = Console()
        self.progress = Progress(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[loss]}"),
            console=self.console,
        )

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero and self.console.is_terminal:
            self.progress.start()
        total, done = state.max_steps, state.global_step
        self.task = self.progress.add_task(self.title, total=total, completed=done, rate="", loss="")

    def on_step_end(self, args, state, control, **kwargs):
        speed = self.progress.tasks[0].speed
        rate = f"{speed:.2f} steps/s" if speed else ""
        self.progress.update(self.task, completed=state.global_step, rate=rate)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" not in logs:
            return
        self.progress.update(self.task, loss=f"loss {logs['loss']:.4f}")
        if state.is_world_process_zero and not self.console.is_terminal:
            task = self.progress.tasks[0]
            left = f", {task.time_remaining:.0f} s left" if task.time_remaining is not None else ""
            say(f"{self.title}: step {state.global_step}/{state.max_steps}, loss {logs['loss']:.4f}{left}")

    def on_train_end(self, args, state, control, **kwargs):
        if self.progress.live.is_started:
            self.progress.stop()
