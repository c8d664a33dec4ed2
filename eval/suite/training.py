"""Training a checkpoint as steps of a run: commands whose output goes to a log and updates the live table."""

import os
import re
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from eval.suite.options import SEED
from eval.suite.schedule import Children
from modeling_aligned_llava.errors import UserError
from modeling_aligned_llava.quiet import NOT_A_TERMINAL


PROGRESS = re.compile(r".* step (\d+)/(\d+), loss [^\s,]+(?:, (\d+ s left))?")
STAGES = {"stage1": (0.0, 0.3), "stage2": (0.3, 0.7)}  # its start and its length, as shares of the time of both
Show = Callable[[float, str, str], None]


def checkpoint_name(method: str, seed: int) -> str:
    """The folder under `checkpoints` that train/run.sh trains in."""
    return method if seed == SEED else f"{method}-seed{seed}"


@dataclass(frozen=True)
class Training:
    """One stage of training the checkpoint `name`. Run again, `command` resumes, or finds the stage finished."""

    name: str
    stage: str
    command: tuple[str, ...]
    log: Path

    @property
    def step(self) -> str:
        """The name of this step in a run."""
        return f"{self.name} {self.stage}"

    @property
    def share(self) -> float:
        """Its share of the time of both stages."""
        return STAGES[self.stage][1]

    def run(self, children: Children, environment: dict[str, str], show: Show) -> None:
        """Run the command to its end.

        Args:
            environment: variables added to those of this process.
            show: called with the finished share of both stages, the stage, and its remaining time.

        Raises:
            UserError: the command failed; the message is its error line, or its last line.
        """
        process = children.start(
            self.command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            errors="replace",
            close_fds=False,  # it inherits the run's lock, so that the next run waits for it
            env=os.environ | NOT_A_TERMINAL | environment,
        )
        lines: list[str] = []
        reader = threading.Thread(target=self._read, args=(process, lines, show))
        reader.start()
        code = children.wait(process)
        reader.join()
        if code:
            raise UserError(f"training {self.step} failed: {failure(lines, code)}; see {self.log}")

    def _read(self, process: "subprocess.Popen[str]", lines: list[str], show: Show) -> None:
        assert process.stdout is not None
        begin, length = STAGES[self.stage]
        with self.log.open("a", encoding="utf-8") as log:
            for line in process.stdout:
                log.write(line)
                log.flush()
                lines.append(line.rstrip())
                if (progress := PROGRESS.match(line)) is not None:
                    done, steps, left = progress.groups()
                    show(begin + length * int(done) / int(steps), self.stage, left or "")


def failure(lines: list[str], code: int) -> str:
    """Why a command failed, in one line: its error message, else its last line, else its exit status."""
    signal = -code if code < 0 else code - 128  # a shell reports a child killed by a signal as 128 + signal
    if signal > 0:
        return f"killed by signal {signal}"
    errors = [line for line in lines if re.match(r"(error: |[\w.]*(Error|Exception): )", line)]
    return next(reversed(errors or [line for line in lines if line]), f"exit status {code}").removeprefix("error: ")
