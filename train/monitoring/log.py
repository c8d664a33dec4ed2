"""The progress bar of a run and its files of JSON lines."""

import json
import math
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm
from transformers import TrainerCallback, TrainerState

from modeling_aligned_llava.loading.files import disk_errors_named, replacing
from train.stage_folder import say


SILENCE = 30.0  # seconds without a line, where the output is a file
PROGRESS_JSON = "PROGRESS_JSON"  # environment variable: progress as lines of JSON, for a program that reads them


class JsonLinesFile(TrainerCallback):
    """A file with one JSON line per record, each with its `step`. Only the first process writes.

    A resumed run first drops the lines after its checkpoint, a run without one all lines: it writes them again.
    """

    def __init__(self, path: Path):
        self.path = path

    def on_train_begin(self, args, state, control, **kwargs):
        if state.is_world_process_zero:
            drop_lines_after(self.path, state.global_step or -1)  # -1: step 0 has lines, too

    def append(self, state: TrainerState, record: dict[str, Any]) -> None:
        """Add a line."""
        if state.is_world_process_zero:
            with disk_errors_named(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")


class LossLog(JsonLinesFile):
    """`log.jsonl`: the trainer's log. Unlike `log_history`, it can be followed live and outlives the checkpoints."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" in logs or "eval_loss" in logs:
            memory = {"peak_memory_bytes": torch.cuda.max_memory_allocated()} if torch.cuda.is_available() else {}
            self.append(state, {"step": state.global_step, **logs, **memory})


def drop_lines_after(path: Path, step: int) -> None:
    """Keep only the lines up to `step`."""
    kept = lines_up_to(path, step)
    with replacing(path) as unfinished:
        unfinished.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def lines_up_to(path: Path, step: int) -> list[str]:
    """The complete lines up to `step`."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line for line in lines if _step(line) <= step]


def _step(line: str) -> float:
    try:
        return json.loads(line)["step"]
    except ValueError:  # an interrupted write
        return math.inf


class ProgressBar(TrainerCallback):
    """Steps, rate, time left and loss. Without a terminal, a line per log and, in steps longer than half a minute,
    after their first and then some of their micro-batches; with `PROGRESS_JSON` lines of JSON.

    The Trainer's own bar prints each log as a whole dictionary, and writes every redrawing into a log file.
    """

    def __init__(self, title: str):
        self.title = title

    def on_train_begin(self, args, state, control, **kwargs):
        hidden = None if state.is_world_process_zero else True  # None: without a terminal
        self.bar = tqdm(
            total=state.max_steps,
            initial=state.global_step,
            desc=self.title,
            unit="step",
            file=sys.stdout,
            disable=hidden,
        )
        self.start, self.first = time.monotonic(), state.global_step
        self.spoke, self.parts = self.start, 0  # micro-batches of the current step

    def on_substep_end(self, args, state, control, **kwargs):
        self.parts += 1
        lasts = (time.monotonic() - self.start) * args.gradient_accumulation_steps  # after the first micro-batch
        is_first = self.parts == 1 and state.global_step == self.first
        if time.monotonic() - self.spoke >= SILENCE or (is_first and lasts >= SILENCE):
            self._speak(state, self.parts / args.gradient_accumulation_steps)

    def on_step_end(self, args, state, control, **kwargs):
        self.bar.update()
        self.parts = 0
        if time.monotonic() - self.spoke >= SILENCE:
            self._speak(state, 0)

    def on_log(self, args, state, control, logs=None, **kwargs):
        if "loss" not in logs:
            return
        self.bar.set_postfix_str(f"loss {logs['loss']:.4f}")
        self._speak(state, 0, logs["loss"])

    def _speak(self, state: TrainerState, part: float, loss: float | None = None) -> None:
        """Say how far training is, without a terminal: `part` of the step after `global_step`."""
        if not self.bar.disable or not state.is_world_process_zero:
            return
        self.spoke, step = time.monotonic(), state.global_step + part
        left = round((self.spoke - self.start) / (step - self.first) * (state.max_steps - step))
        known = {} if loss is None else {"loss": loss}
        if os.environ.get(PROGRESS_JSON):
            say(json.dumps({"step": round(step, 2), "steps": state.max_steps, **known, "seconds_left": left}))
        else:
            losses = "".join(f", loss {value:.4f}" for value in known.values())
            say(f"{self.title}: step {round(step, 2):g}/{state.max_steps}{losses}, {left} s left")

    def on_train_end(self, args, state, control, **kwargs):
        self.bar.close()
