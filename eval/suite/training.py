"""Training a checkpoint as steps of a run: commands whose output goes to a log and moves the live table."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.engine.child import logged
from eval.engine.steps import Event
from eval.suite.options import SEED


PROGRESS = re.compile(r".* step (\d+)/(\d+), loss [^\s,]+(?:, (\d+ s left))?")
START = "start"  # the model before it is fine-tuned
FINETUNE = "finetuned"  # the only stage of a model that was trained before
STAGES = {"stage1": (0.0, 0.3), "stage2": (0.3, 0.7)}  # its start and its length, as shares of the time of both
SPANS = STAGES | {FINETUNE: (0.0, 1.0)}


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
        return SPANS[self.stage][1]

    def run(self) -> Iterator[Event]:
        """Run the command to its end; yields calls of `Status`.

        Raises:
            UserError: the command failed; the message is its error line, or its last line.
        """
        begin, length = SPANS[self.stage]
        for line in logged(self.command, self.log):
            if (progress := PROGRESS.match(line)) is not None:
                done, steps, left = progress.groups()
                yield "train", self.name, begin + length * int(done) / int(steps), self.stage, left or ""
        yield "trained", self.name, self.stage
